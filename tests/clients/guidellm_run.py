"""guidellm: synthetic prompts, one request at a time. --style: the request format, /v1/chat/completions or /v1/completions."""

import json

import kit


def run(job, result):
    where, report = job.style or "/v1/chat/completions", job.scratch / "benchmarks.json"
    data = f"kind=synthetic_text,prompt_tokens={job.tokens},output_tokens={kit.ANSWER_TOKENS}"
    backend = f"kind=openai_http,target={job.url},model={job.model},request_format={where}"
    command = [kit.BIN / "guidellm", "run", "--backend", backend, "--profile", "kind=synchronous", "--data", data,
               "--tokenizer", f"kind=huggingface_auto,model={job.folder}", "--constraint", f"kind=max_requests,count={job.requests}",
               "--output", f"kind=json,path={report}", "--disable-console-interactive"]
    code, words = kit.tool(command, job.scratch)
    if code or not report.exists():
        result.requests, result.failures, result.note = job.requests, job.requests, f"exit {code}: {words}"
        return
    found = json.loads(report.read_text())["benchmarks"][0]
    totals = found["metrics"]["request_totals"]
    result.requests, result.failures = job.requests, job.requests - totals["successful"]
    times = found["metrics"]["time_to_first_token_ms"]["successful"]
    result.mean_ms, result.median_ms = times["mean"], times["median"]
    if result.failures:
        errors = found["requests"]["errored"]
        result.note = str(errors[0].get("info", {}).get("error") if errors else totals)[:300]


kit.main(run, run, "guidellm")
