"""`vllm bench serve`: random prompts, one request at a time. --style: the back-end, openai or openai-chat; +sampling sets all of its
parameters to values that ask for nothing."""

import json

import kit


def run(job, result):
    (backend, sampling), report = (job.style or "openai").partition("+")[::2], job.scratch / "result.json"
    path = "/v1/chat/completions" if backend == "openai-chat" else "/v1/completions"
    command = [kit.BIN / "vllm", "bench", "serve", "--backend", backend, "--base-url", job.url, "--endpoint", path, "--model", job.model,
               "--tokenizer", job.folder, "--dataset-name", "random", "--random-input-len", job.tokens, "--random-output-len",
               kit.ANSWER_TOKENS, "--num-prompts", job.requests, "--max-concurrency", 1, "--save-result", "--save-detailed",
               "--result-filename", report, "--disable-tqdm", "--ready-check-timeout-sec", 0,
               "--seed", len(job.style)]
    if sampling:
        neutral = {"temperature": 0, "top-p": 1.0, "top-k": -1, "min-p": 0.0, "frequency-penalty": 0.0, "presence-penalty": 0.0, "repetition-penalty": 1.0}
        command += [word for name, value in neutral.items() for word in (f"--{name}", value)] + ["--ignore-eos"]
    code, words = kit.tool(command, job.scratch)
    if code or not report.exists():
        result.requests, result.failures, result.note = job.requests, job.requests, f"exit {code}: {words}"
        return
    found = json.loads(report.read_text())
    result.requests, result.failures = job.requests, job.requests - found["completed"]
    result.ttft_ms = [1e3 * seconds for seconds, error in zip(found["ttfts"], found["errors"]) if not error]
    result.note = next((" ".join(error.split())[-300:] for error in found["errors"] if error), "")


kit.main(run, run, "vllm")
