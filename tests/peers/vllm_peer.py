"""vLLM's build for CPUs, one thread, its engine in this process, prefix caching off: a child of
run.py (lines.py).

Of the environment: VLLM_COMPILE=no computes eagerly; VLLM_BATCH is the most tokens of a step,
vLLM's own default if unset.
"""

import json
import math
import os
import time

from lines import allocator, serve

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


class Peer:
    def load(self, folder, dtype, room, sequences, held, **_):
        config = json.load(open(os.path.join(folder, "config.json")))
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        row_bytes = 2 * config["num_key_value_heads"] * head * config["num_hidden_layers"] * (4 if dtype == "f32" else 2)
        # GiB, whole; a block is 128 tokens.
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(row_bytes * (held + 256 * sequences) * 1.05 / 2**30))
        import vllm

        self.vllm, batch = vllm, int(os.environ.get("VLLM_BATCH") or min(room, 4096))
        eager = os.environ.get("VLLM_COMPILE") == "no"
        self.llm = vllm.LLM(
            model=folder, skip_tokenizer_init=True, dtype={"f32": "float32", "bf16": "bfloat16"}[dtype], enforce_eager=eager, max_model_len=room,
            max_num_batched_tokens=batch, max_num_seqs=sequences, enable_prefix_caching=False, max_logprobs=64)
        compiled = "eager" if eager else "compiled"
        settings = f"{dtype}, {compiled}, at most {batch} tokens a step, no prefix cache, {allocator()}, engine in one process"
        return {"versions": f"vLLM {vllm.__version__}", "settings": settings}

    def params(self, tokens, **options):
        return self.vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **options)

    def generate(self, ids, params):
        return self.llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)[0].outputs[0]

    def check(self, ids, top):
        found = self.generate(ids, self.params(1, logprobs=top)).logprobs[0]
        return {"logprobs": sorted(((token, one.logprob) for token, one in found.items()), key=lambda one: -one[1])}

    def prefill(self, ids):
        params, began = self.params(1), time.perf_counter()
        token = self.generate(ids, params).token_ids[0]
        return {"seconds": time.perf_counter() - began, "token": token}

    def step(self):
        """Tokens of a step of the engine, a list for each sequence."""
        found = {}
        for output in self.llm.llm_engine.step():
            found[int(output.request_id.split("-")[0])] = list(output.outputs[0].token_ids)
        return found

    def begin(self, prompts):
        from vllm.sampling_params import RequestOutputKind

        self.tokens = [[] for _ in prompts]
        self.names = []
        for number, ids in enumerate(prompts):
            # More tokens than are ever asked for: the sequences go on whenever the engine is
            # stepped.
            params = self.params(self.llm.model_config.max_model_len - len(ids), output_kind=RequestOutputKind.DELTA)
            self.names.append(self.llm.llm_engine.add_request(f"{number}", {"prompt_token_ids": ids}, params) or f"{number}")
        while not all(self.tokens):
            self.keep(self.step())
        # Sequences that began earlier have decoded some tokens more.
        return {"tokens": [one[0] for one in self.tokens]}

    def keep(self, found):
        for number, tokens in found.items():
            self.tokens[number] += tokens

    def decode(self, steps):
        before, began = [len(one) for one in self.tokens], time.perf_counter()
        while any(len(one) < count + steps for one, count in zip(self.tokens, before)):
            self.keep(self.step())
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "tokens": [one[count:] for one, count in zip(self.tokens, before)]}

    def end(self):
        self.llm.llm_engine.abort_request(self.names)
        while self.llm.llm_engine.has_unfinished_requests():
            self.llm.llm_engine.step()
        return {"tokens": self.tokens}


serve(Peer())
