"""aiperf: synthetic prompts, one request at a time. --style: the endpoint's type, chat or completions; +usage asks for counts with
each part and for answers of a fixed length."""

import json

import kit


def run(job, result):
    report = job.scratch / "profile_export_aiperf.json"
    kind, usage = (job.style or "chat").partition("+")[::2]
    command = [kit.BIN / "aiperf", "profile", "--model", job.model, "--url", job.url, "--endpoint-type", kind, "--streaming",
               "--tokenizer", job.folder, "--isl", job.tokens, "--osl", kit.ANSWER_TOKENS, "--request-count", job.requests,
               "--concurrency", 1, "--workers-max", 1, "--artifact-dir", job.scratch, "--ui-type", "none", "--random-seed", 1 + len(job.style)]
    if usage:
        command += ["--use-server-token-count", "--per-chunk-usage", "--use-legacy-max-tokens", "--extra-inputs", "ignore_eos:true", "--extra-inputs",
                    f"min_tokens:{kit.ANSWER_TOKENS}", "--extra-inputs", "temperature:0"]
    # It takes a folder for a tokenizer only where it believes that it may ask the hub; then it does not.
    code, words = kit.tool(command, job.scratch, without=("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    if not report.exists():
        single = job.scratch / "profile_export.jsonl"
        errors = [json.loads(line).get("error") for line in single.read_text().splitlines()] if single.exists() else []
        result.requests, result.failures, result.note = job.requests, job.requests, f"exit {code}: {json.dumps(errors[0]) if errors else words}"[:300]
        return
    found = json.loads(report.read_text())
    answered = int((found.get("request_count") or {}).get("avg") or 0)
    result.requests, result.failures = job.requests, job.requests - answered
    times = found.get("time_to_first_token") or {}
    result.mean_ms, result.median_ms = times.get("avg"), times.get("p50")
    if result.failures:
        result.note = f"exit {code}: {json.dumps(found.get('error_summary', words))}"[:300]


kit.main(run, run, "aiperf")
