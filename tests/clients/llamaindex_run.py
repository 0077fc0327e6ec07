"""LlamaIndex: OpenAILike as a chat model and a text model, and retrieved nodes through the integration of this project."""

import asyncio

import kit
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.retrievers import BaseRetriever
from llama_index.llms.openai_like import OpenAILike
from tributary_llamaindex import query_engine_with_documents

QUERY, DOCUMENTS = kit.example()


class Words(BaseRetriever):
    """Local texts, those first that share most words with the query."""

    def __init__(self, texts, backwards=False):
        super().__init__()
        self.texts, self.backwards = texts, backwards

    def _retrieve(self, query):
        wanted = set(query.query_str.split())
        found = sorted(self.texts, key=lambda text: -len(wanted & set(text.split())))
        return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in found[:: -1 if self.backwards else 1]]


def model(job, documents=None, **more):
    extra = {"extra_body": {"documents": documents}} if documents else {}
    return OpenAILike(model=job.model, api_base=f"{job.url}/v1", api_key="none", max_retries=0, timeout=600,
                      additional_kwargs=extra, **{"max_tokens": 4, "is_chat_model": True, **more})


def answers(job, result):
    message = [ChatMessage(role="user", content=QUERY)]

    def chat():
        found = model(job, DOCUMENTS).chat(message)
        assert found.message.content.strip().startswith("lyon"), found

    def stream_chat():
        last = list(model(job, DOCUMENTS).stream_chat(message))[-1]
        assert last.message.content.strip().startswith("lyon"), last

    def turns():
        history = [ChatMessage(role="system", content="it rains slowly today ."), *message, ChatMessage(role="assistant", content="lyon ."), *message]
        assert model(job, DOCUMENTS).chat(history).message.content

    def complete():
        found = model(job, DOCUMENTS, is_chat_model=False).complete(QUERY)
        assert found.text.strip().startswith("lyon"), found

    def retrieved():
        for backwards in (False, True):
            answer = query_engine_with_documents(Words(DOCUMENTS, backwards), model(job)).query(QUERY)
        cached = answer.metadata["cached_tokens"]
        assert str(answer).strip() and len(answer.source_nodes) == len(DOCUMENTS), answer
        assert cached >= 400, f"{cached} tokens cached after the order changed"

    def retrieved_with_options():
        # What the model's own `extra_body` says stands beside the documents.
        llm = model(job)
        llm.additional_kwargs = {"extra_body": {"tributary": {"method": "trace"}}}
        answer = query_engine_with_documents(Words(DOCUMENTS), llm).query(QUERY)
        assert str(answer).strip().startswith("lyon"), answer
        streamed = query_engine_with_documents(Words(DOCUMENTS), llm, streaming=True).query(QUERY)
        assert "".join(streamed.response_gen) == str(answer)
        assert str(asyncio.run(query_engine_with_documents(Words(DOCUMENTS), llm).aquery(QUERY))) == str(answer)

    for check in (chat, stream_chat, turns, complete, retrieved, retrieved_with_options):
        result.attempt(check.__name__, check)


def measured(job, result):
    chat = model(job, max_tokens=kit.ANSWER_TOKENS)
    kit.times(job, result, lambda prompt: (part.delta for part in chat.stream_chat([ChatMessage(role="user", content=prompt)])))


kit.main(answers, measured, "llama-index-llms-openai-like")
