"""inference-perf: random prompts, one request at a time. Its random prompts are for completions only."""

import json

import kit


def spread(tokens, count):
    return {"min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": count}


def run(job, result):
    config = {
        "api": {"type": job.style or "completion", "streaming": True},
        "server": {"type": "vllm", "model_name": job.model, "base_url": job.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(job.folder)},
        "data": {"type": "random", "input_distribution": spread(job.tokens, job.requests), "output_distribution": spread(kit.ANSWER_TOKENS, job.requests)},
        "load": {"type": "concurrent", "stages": [{"num_requests": job.requests, "concurrency_level": 1}], "num_workers": 1,
                 "worker_max_concurrency": 1},
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}},
        "storage": {"local_storage": {"path": str(job.scratch / "reports")}},
    }
    # JSON is YAML.
    (job.scratch / "config.yml").write_text(json.dumps(config))
    code, words = kit.tool([kit.BIN / "inference-perf", "--config_file", "config.yml"], job.scratch)
    reports = list((job.scratch / "reports").rglob("summary_lifecycle_metrics.json"))
    if not reports:
        result.requests, result.failures, result.note = job.requests, job.requests, f"exit {code}: {words}"
        return
    found = json.loads(reports[0].read_text())
    result.requests, result.failures = job.requests, job.requests - found["successes"]["count"]
    times = (found["successes"].get("latency") or {}).get("time_to_first_token") or {}
    result.mean_ms, result.median_ms = (1e3 * times[name] if times.get(name) is not None else None for name in ("mean", "median"))
    if result.failures:
        result.note = json.dumps(found["failures"].get("by_label", words))[:300]


kit.main(run, run, "inference-perf")
