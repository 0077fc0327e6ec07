"""lm-evaluation-harness: multiple choice by log-likelihood, answers by generation, and answers of a chat; local tasks and data."""

import json

import kit

HERE = kit.ROOT / "tests/clients/lm-eval"
QUESTIONS = len((HERE / "facts.jsonl").read_text().splitlines())


def tasks(job):
    """The tasks with the path of their data."""
    folder = job.scratch / "tasks"
    folder.mkdir(exist_ok=True)
    for file in HERE.glob("*.yaml"):
        (folder / file.name).write_text(file.read_text().replace("FACTS", str(HERE / "facts.jsonl")))
    return folder


def evaluate(job, model, route, task, *more):
    """The result of one run of the tool."""
    folder = job.scratch / f"{task}-{model}"
    arguments = f"model={job.model},base_url={job.url}/v1/{route},tokenizer={job.folder},num_concurrent=1,max_retries=1"
    # The demo model has learned texts after <bos>. Token ids are taken unchanged, so the tool has to add it.
    arguments += ",add_bos_token=True" if model == "local-completions" else ""
    command = [kit.BIN / "lm-eval", "run", "--model", model, "--model_args", arguments, "--include_path", tasks(job), "--tasks", task,
               "--output_path", folder, *more]
    code, words = kit.tool(command, job.scratch)
    found = sorted(folder.rglob("results*.json"))
    if code or not found:
        raise RuntimeError(f"exit {code}: {words}")
    return json.loads(found[-1].read_text())["results"][task]


def answers(job, result):
    def loglikelihood():
        found = evaluate(job, "local-completions", "completions", "facts_choice")
        # The demo model answers such questions; one that is not answered by its own likelihoods guesses.
        assert found["acc,none"] >= 0.75, found

    def loglikelihood_batch():
        found = evaluate(job, "local-completions", "completions", "facts_choice", "--batch_size", 4)
        assert found["acc,none"] >= 0.75, found

    def generate_until():
        found = evaluate(job, "local-completions", "completions", "facts_answer")
        assert found["exact_match,first"] >= 0.75, found

    def chat():
        found = evaluate(job, "local-chat-completions", "chat/completions", "facts_answer", "--apply_chat_template")
        assert found["exact_match,first"] >= 0.75, found

    for check in (loglikelihood, loglikelihood_batch, generate_until, chat):
        result.attempt(check.__name__, check)


kit.main(answers, answers, "lm-eval")
