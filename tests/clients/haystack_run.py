"""Haystack: its generators for OpenAI's interface, and documents of a retriever as `documents`."""

import os
import queue
import threading

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
import kit  # noqa: E402
from haystack.components.generators.chat import OpenAIChatGenerator  # noqa: E402
from haystack.dataclasses import ChatMessage, Document  # noqa: E402
from haystack.utils import Secret  # noqa: E402

QUERY, DOCUMENTS = kit.example()


def generator(job, **more):
    return OpenAIChatGenerator(model=job.model, api_base_url=f"{job.url}/v1", api_key=Secret.from_token("none"), max_retries=0, timeout=600, **more)


def asked(documents, tokens=4):
    return {"max_completion_tokens": tokens, "extra_body": {"documents": [document.content for document in documents]}}


def answers(job, result):
    documents = [Document(content=text) for text in DOCUMENTS]

    def plain():
        found = generator(job).run([ChatMessage.from_user(QUERY)], generation_kwargs=asked(documents))
        assert found["replies"][0].text.strip().startswith("lyon"), found

    def stream():
        parts = []
        generator(job, streaming_callback=parts.append).run([ChatMessage.from_user(QUERY)], generation_kwargs=asked(documents))
        assert "".join(part.content for part in parts).strip().startswith("lyon"), parts

    def turns():
        history = [ChatMessage.from_system("it rains slowly today ."), ChatMessage.from_user(QUERY), ChatMessage.from_assistant("lyon ."), ChatMessage.from_user(QUERY)]
        found = generator(job).run(history, generation_kwargs=asked(documents[::-1]))
        assert found["replies"][0].text, found

    def reordered():
        for order in (documents, documents[::-1]):
            found = generator(job).run([ChatMessage.from_user(QUERY)], generation_kwargs=asked(order))
        cached = found["replies"][0].meta["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= 400, f"{cached} tokens cached after the order changed"

    for check in (plain, stream, turns, reordered):
        result.attempt(check.__name__, check)


def measured(job, result):
    parts = queue.Queue()
    asking = generator(job, streaming_callback=lambda part: parts.put(part.content))

    def run(prompt):
        try:
            asking.run([ChatMessage.from_user(prompt)], generation_kwargs={"max_completion_tokens": kit.ANSWER_TOKENS})
        finally:
            parts.put(None)

    def ask(prompt):
        threading.Thread(target=run, args=(prompt,)).start()
        while (part := parts.get()) is not None:
            yield part

    kit.times(job, result, ask)


kit.main(answers, measured, "haystack-ai")
