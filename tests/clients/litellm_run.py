"""litellm: `completion` with its OpenAI-compatible and its vLLM provider, whole and streamed."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
import kit  # noqa: E402
import litellm  # noqa: E402

QUERY, DOCUMENTS = kit.example()


def answers(job, result):
    def ask(**more):
        given = dict(model=f"openai/{job.model}", api_base=f"{job.url}/v1", api_key="none", max_tokens=4, num_retries=0,
                     messages=[{"role": "user", "content": QUERY}], extra_body={"documents": DOCUMENTS})
        return litellm.completion(**{**given, **more})

    def plain():
        found = ask()
        assert found.choices[0].message.content.strip().startswith("lyon"), found

    def vllm():
        found = ask(model=f"hosted_vllm/{job.model}", temperature=0)
        assert found.choices[0].message.content.strip().startswith("lyon"), found

    def stream():
        found = ask(stream=True, stream_options={"include_usage": True})
        assert "".join(part.choices[0].delta.content or "" for part in found if part.choices).strip().startswith("lyon")

    def history():
        first = ask().choices[0].message
        later = ask(messages=[{"role": "system", "content": "it rains slowly today ."}, {"role": "user", "content": QUERY}, first, {"role": "user", "content": QUERY}])
        assert later.choices[0].message.content, later

    def text():
        found = litellm.text_completion(model=f"text-completion-openai/{job.model}", api_base=f"{job.url}/v1", api_key="none", prompt=QUERY,
                                        max_tokens=4, extra_body={"documents": DOCUMENTS})
        assert found.choices[0].text.strip().startswith("lyon"), found

    for check in (plain, vllm, stream, history, text):
        result.attempt(check.__name__, check)


def measured(job, result):
    def ask(prompt):
        stream = litellm.completion(model=f"openai/{job.model}", api_base=f"{job.url}/v1", api_key="none", max_tokens=kit.ANSWER_TOKENS,
                                    messages=[{"role": "user", "content": prompt}], stream=True)
        for part in stream:
            yield part.choices[0].delta.content if part.choices else None

    kit.times(job, result, ask)


kit.main(answers, measured, "litellm")
