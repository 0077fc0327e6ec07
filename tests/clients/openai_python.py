"""OpenAI's package for Python: chats and texts, whole and streamed, documents in extra_body."""

import kit
import openai

QUERY, DOCUMENTS = kit.example()


def client(job):
    return openai.OpenAI(base_url=f"{job.url}/v1", api_key="none", max_retries=0, timeout=600)


def answers(job, result):
    api, extra = client(job), {"documents": DOCUMENTS}
    messages = [{"role": "system", "content": "it rains slowly today ."}, {"role": "user", "content": QUERY}]
    chat = dict(model=job.model, messages=messages[1:], max_tokens=4, extra_body=extra)

    def plain():
        answer = api.chat.completions.create(**chat)
        assert answer.choices[0].message.content.strip().startswith("lyon"), answer

    def streamed():
        stream = api.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
        parts = list(stream)
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text.strip().startswith("lyon"), text
        assert parts[-1].usage.completion_tokens == 4, parts[-1]

    def turns():
        earlier = [*messages, {"role": "assistant", "content": "lyon ."}, {"role": "user", "content": QUERY}]
        answer = api.chat.completions.create(**{**chat, "messages": earlier}, temperature=0.0, top_p=1.0, n=1, seed=1,
                                             presence_penalty=0.0, frequency_penalty=0.0, stop=["\n"], user="a", logprobs=True, top_logprobs=2)
        assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens, answer

    def parts():
        content = [{"type": "text", "text": QUERY}]
        answer = api.chat.completions.create(model=job.model, messages=[{"role": "user", "content": content}], max_completion_tokens=4,
                                             extra_body=extra, response_format={"type": "text"}, tools=openai.omit)
        assert answer.choices[0].message.content.strip().startswith("lyon"), answer

    def text():
        answer = api.completions.create(model=job.model, prompt=QUERY, max_tokens=4, extra_body=extra)
        assert answer.choices[0].text.strip().startswith("lyon"), answer

    def text_streamed():
        stream = api.completions.create(model=job.model, prompt=QUERY, max_tokens=4, stream=True, extra_body=extra, logprobs=2)
        assert "".join(part.choices[0].text for part in stream if part.choices).strip().startswith("lyon")

    def prompt_lists():
        answer = api.completions.create(model=job.model, prompt=[QUERY, QUERY], max_tokens=2)
        assert len(answer.choices) == 2 and answer.choices[0].text == answer.choices[1].text, answer

    def echo():
        answer = api.completions.create(model=job.model, prompt=QUERY, max_tokens=0, echo=True, logprobs=1)
        assert answer.choices[0].text.split() == QUERY.split() and answer.choices[0].logprobs.token_logprobs[-1] < 0, answer

    def models():
        assert [model.id for model in api.models.list()] == [job.model]

    for check in (plain, streamed, turns, parts, text, text_streamed, prompt_lists, echo, models):
        result.attempt(check.__name__, check)


def measured(job, result):
    api = client(job)

    def ask(prompt):
        messages = [{"role": "user", "content": prompt}]
        for part in api.chat.completions.create(model=job.model, messages=messages, max_tokens=kit.ANSWER_TOKENS, stream=True):
            yield part.choices[0].delta.content if part.choices else None

    kit.times(job, result, ask)


kit.main(answers, measured, "openai")
