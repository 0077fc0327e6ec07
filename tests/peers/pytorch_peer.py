"""PyTorch and transformers, one thread, SDPA attention, eager: a child of run.py (lines.py)."""

import time

import torch
import transformers
from lines import allocator, serve
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer

# Rows by which the storage of keys and values grows.
GROWTH = 1024


class RoomyLayer(DynamicLayer):
    """Keys and values with room behind them; transformers' own layer copies them for every token."""

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.count, self.storage = 0, None
        first, self.count = self.count, self.count + key_states.shape[-2]
        if self.storage is None or self.count > self.storage[0].shape[-2]:
            room = (*key_states.shape[:2], self.count + GROWTH, key_states.shape[-1])
            grown = key_states.new_empty(room), value_states.new_empty(room)
            if first:
                for new, old in zip(grown, (self.keys, self.values)):
                    new[:, :, :first] = old
            self.storage = grown
        self.storage[0][:, :, first : self.count] = key_states
        self.storage[1][:, :, first : self.count] = value_states
        self.keys, self.values = (one[:, :, : self.count] for one in self.storage)
        return self.keys, self.values


class Peer:
    def load(self, folder, dtype, **_):
        torch.set_num_threads(1)
        torch.set_num_interop_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype], attn_implementation="sdpa").eval()
        settings = f"{dtype}, SDPA, eager, {allocator()}, keys and values in storage with room (transformers' own cache copies them for every token)"
        return {"versions": f"PyTorch {torch.__version__}, transformers {transformers.__version__}", "settings": settings}

    @torch.inference_mode()
    def last(self, ids, cache):
        """Logits after the last of some rows, [sequences, vocabulary]."""
        return self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    def cache(self):
        cache = DynamicCache()
        cache.layers = [RoomyLayer() for _ in range(self.model.config.num_hidden_layers)]
        return cache

    def check(self, ids, top):
        logprobs = self.last(torch.tensor([ids]), self.cache())[0].float().log_softmax(-1)
        values, tokens = logprobs.topk(top)
        return {"logprobs": list(zip(tokens.tolist(), values.tolist()))}

    def prefill(self, ids):
        began = time.perf_counter()
        token = int(self.last(torch.tensor([ids]), self.cache()).argmax())
        return {"seconds": time.perf_counter() - began, "token": token}

    def begin(self, prompts):
        # One prompt at a time, then all of them as a batch: activations of one prompt only.
        each, firsts = [], []
        for ids in prompts:
            each.append(self.cache())
            firsts.append(int(self.last(torch.tensor([ids]), each[-1]).argmax()))
        self.drawn = [[token] for token in firsts]
        self.together, self.next = self.cache(), torch.tensor(firsts)[:, None]
        for number, layer in enumerate(self.together.layers):
            layer.update(*(torch.cat([getattr(one.layers[number], name) for one in each]) for name in ("keys", "values")))
            for one in each:
                one.layers[number].keys = one.layers[number].values = one.layers[number].storage = None
        return {"tokens": firsts}

    def decode(self, steps):
        drawn, began = [], time.perf_counter()
        for _ in range(steps):
            self.next = self.last(self.next, self.together).argmax(-1, keepdim=True)
            drawn.append(self.next[:, 0].tolist())
        seconds, tokens = time.perf_counter() - began, [list(one) for one in zip(*drawn)]
        for all_of_it, new in zip(self.drawn, tokens):
            all_of_it += new
        return {"seconds": seconds, "tokens": tokens}

    def end(self):
        self.together = self.next = None
        return {"tokens": self.drawn}


serve(Peer())
