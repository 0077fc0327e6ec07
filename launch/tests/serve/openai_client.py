"""What a user of OpenAI's Python package does, against a service; run by the tests in this folder.

    openai_client.py HOST:PORT REQUEST    REQUEST: the body of a chat completion request, with documents
"""

import json
import sys
import time

import openai

ADDRESS, REQUEST = sys.argv[1], json.loads(sys.argv[2])
CLIENT = openai.OpenAI(base_url=f"http://{ADDRESS}/v1", api_key="none", max_retries=0, timeout=60)
MESSAGES, DOCUMENTS, TOKENS = REQUEST["messages"], {"documents": REQUEST["documents"]}, REQUEST["max_tokens"]


def chat(**more):
    parameters = dict(model="demo", messages=MESSAGES, max_tokens=TOKENS, extra_body=DOCUMENTS)
    return CLIENT.chat.completions.create(**{**parameters, **more})


def refused(kind, **more):
    """The error of a request that must fail with this class."""
    try:
        chat(**more)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}: {more}")


def plain():
    completion = chat()
    choice = completion.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason == "length", completion
    assert choice.message.content.startswith("lyon"), completion
    assert completion.usage.completion_tokens == TOKENS, completion.usage
    assert completion.usage.prompt_tokens_details.cached_tokens >= 0
    # What OpenAI does not know is there all the same.
    assert completion.metrics["ttft_ms"] > 0 and completion.metrics["method"] == "infoflow"
    assert chat(temperature=1.2, seed=3).choices[0].message.content == chat(temperature=1.2, seed=3).choices[0].message.content
    relay = chat(extra_body={**DOCUMENTS, "tributary": {"method": "relay"}})
    assert relay.metrics["method"] == "relay"
    bare = chat(extra_body={}, max_completion_tokens=2, max_tokens=openai.NOT_GIVEN)
    assert bare.usage.completion_tokens == 2
    system = [{"role": "system", "content": "passage it rains slowly today ."}] + MESSAGES
    assert chat(messages=system).choices[0].message.content
    return choice.message.content


def streamed(expected):
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected, (text, expected)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "length" and not any(reasons[:-1]), reasons
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].usage.completion_tokens == TOKENS and not chunks[-1].choices
    assert all(chunk.usage is None for chunk in chat(stream=True)), "only who asks is told"
    with CLIENT.chat.completions.stream(model="demo", messages=MESSAGES, max_tokens=TOKENS, extra_body=DOCUMENTS) as stream:
        kinds = [event.type for event in stream]
    assert "content.delta" in kinds and kinds[-1] == "content.done", kinds


def cancelled(expected):
    stream = chat(stream=True, max_tokens=3000)
    for _, chunk in zip(range(5), stream):
        assert chunk.choices
    began = time.monotonic()
    stream.close()
    assert chat().choices[0].message.content == expected
    assert time.monotonic() - began < 20
    error = refused(openai.APITimeoutError, max_tokens=3000, timeout=0.2)
    assert isinstance(error, openai.APIConnectionError)
    assert chat().choices[0].message.content == expected


def errors():
    error = refused(openai.BadRequestError, n=2)
    assert (error.param, error.type, error.status_code) == ("n", "invalid_request_error", 400), error
    error = refused(openai.BadRequestError, max_tokens=100_000)
    assert "100000" in error.message and "4096" in error.message, error
    error = refused(openai.BadRequestError, extra_body={"tributary": {"method": "fastest"}})
    assert error.param == "tributary.method", error
    refused(openai.BadRequestError, messages=[{"role": "user", "content": 5}])
    refused(openai.BadRequestError, stream=True, temperature=-1)
    error = refused(openai.NotFoundError, model="gpt-4")
    assert error.code == "model_not_found", error
    try:
        CLIENT.embeddings.create(model="demo", input="x")
    except openai.NotFoundError:
        return
    raise AssertionError("embeddings are not served")


def main():
    assert [model.id for model in CLIENT.models.list()] == ["demo"]
    assert CLIENT.models.retrieve("demo").owned_by == "tributary"
    expected = plain()
    streamed(expected)
    cancelled(expected)
    errors()
    print("all passed")


if __name__ == "__main__":
    main()
