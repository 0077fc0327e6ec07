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


def logprobs():
    completion = chat(logprobs=True, top_logprobs=2)
    content = completion.choices[0].logprobs.content
    assert "".join(token.token for token in content) == completion.choices[0].message.content, content
    assert all(bytes(token.bytes).decode() == token.token and len(token.top_logprobs) == 2 for token in content)
    assert all(token.logprob <= 0 and token.top_logprobs[0].token == token.token for token in content), content
    chunks = [chunk for chunk in chat(logprobs=True, top_logprobs=2, stream=True) if chunk.choices[0].logprobs]
    streamed = [token for chunk in chunks for token in chunk.choices[0].logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in content]
    assert chat().choices[0].logprobs is None


def stop(expected):
    word = expected.split()[2]
    completion = chat(stop=[word, "never"], max_tokens=2000)
    assert completion.choices[0].finish_reason == "stop", completion
    assert completion.choices[0].message.content == expected[: expected.index(word)], completion
    chunks = list(chat(stop=word, max_tokens=2000, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected[: expected.index(word)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def turns(expected):
    first = chat()
    later = MESSAGES + [first.choices[0].message.model_dump()] + MESSAGES
    completion = chat(messages=later)
    assert completion.metrics["cache"] == "warm", completion.metrics
    assert completion.usage.prompt_tokens > first.usage.prompt_tokens
    extra = {**DOCUMENTS, "tributary": {"explain": True}}
    explained = chat(extra_body=extra).tributary
    assert len(explained["context"]) == len(DOCUMENTS["documents"]) and explained["timeline"], explained
    assert chat().choices[0].message.content == expected


def texts(chat):
    # A text continues its prompt; a message begins anew.
    expected = " " + chat
    prompt = MESSAGES[0]["content"]
    parameters = dict(model="demo", prompt=prompt, max_tokens=TOKENS, extra_body=DOCUMENTS)
    completion = CLIENT.completions.create(**parameters, logprobs=2)
    choice = completion.choices[0]
    assert choice.text == expected and choice.finish_reason == "length", completion
    assert "".join(choice.logprobs.tokens) == expected and len(choice.logprobs.top_logprobs) == TOKENS
    assert choice.logprobs.text_offset[0] == 0 and completion.usage.completion_tokens == TOKENS
    chunks = list(CLIENT.completions.create(**parameters, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected
    assert chunks[-1].usage.completion_tokens == TOKENS
    stream = CLIENT.completions.create(**{**parameters, "max_tokens": 3000}, stream=True)
    next(iter(stream))
    stream.close()
    for wrong in ({"suffix": "x"}, {"best_of": 2}, {"n": 65}):
        try:
            CLIENT.completions.create(**parameters, **wrong)
        except openai.BadRequestError as error:
            assert error.param in wrong, error
            continue
        raise AssertionError(wrong)


def busy():
    """More than may wait are turned away, as the class that says so."""
    import concurrent.futures

    def ask(_):
        try:
            chat(max_tokens=1500)
        except openai.RateLimitError as error:
            assert error.status_code == 429 and error.response.headers["retry-after"], error
            return "turned away"
        return "answered"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))
    assert found == {"answered", "turned away"}, found


def errors():
    error = refused(openai.BadRequestError, n=65)
    assert (error.param, error.type, error.status_code) == ("n", "invalid_request_error", 400), error
    error = refused(openai.BadRequestError, max_tokens=100_000)
    assert "100000" in error.message and "16384" in error.message, error
    error = refused(openai.BadRequestError, extra_body={"tributary": {"method": "fastest"}})
    assert error.param == "tributary.method", error
    refused(openai.BadRequestError, messages=[{"role": "user", "content": 5}])
    for name, value in dict(temperature=2.5, top_p=1.5, stop=["a"] * 17, top_logprobs=3, seed=1.5, max_tokens=-1).items():
        assert refused(openai.BadRequestError, **{name: value}).param == name, name
    refused(openai.BadRequestError, stream=True, temperature=-1)
    error = refused(openai.BadRequestError, messages=MESSAGES + [{"role": "robot", "content": "x"}])
    assert error.param.startswith("messages"), error
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
    logprobs()
    stop(expected)
    turns(expected)
    texts(expected)
    busy()
    errors()
    print("all passed")


if __name__ == "__main__":
    main()
