"""Retrieved LlamaIndex nodes as the `documents` of a request, so that Tributary caches and reuses each of them.

LlamaIndex' own synthesizers put the nodes' texts into one prompt, which is computed anew when their order changes. The synthesizer of
this file sends them as `documents`: each text is prefilled once and reused at any later place. Needs
llama-index-core and llama-index-llms-openai-like.
"""

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.response.schema import Response, StreamingResponse
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.llms.openai_like import OpenAILike


def documents_of(nodes: Sequence[NodeWithScore], mode: MetadataMode = MetadataMode.LLM) -> dict[str, Any]:
    """Turn nodes into the request's `extra_body`, in their order; nodes without text are left out.

    `mode` chooses the metadata in the text. They are part of what the model reads and of what is cached.
    """
    texts = (node.node.get_content(metadata_mode=mode) for node in nodes)
    return {"documents": [text for text in texts if text.strip()]}


def cached_tokens(response: ChatResponse) -> int | None:
    """Context tokens of an answer that were reused, if the service said so."""
    details = getattr(getattr(response.raw, "usage", None), "prompt_tokens_details", None)
    return getattr(details, "cached_tokens", None)


class DocumentsSynthesizer(BaseSynthesizer):
    """Asks the query with the nodes as `documents`. The answer's `metadata["cached_tokens"]` counts tokens that were reused.

    `system` is a system text for all queries. Texts are reused among queries with the same one.
    """

    def __init__(self, llm: OpenAILike, *, system: str | None = None, mode: MetadataMode = MetadataMode.LLM, streaming: bool = False) -> None:
        super().__init__(llm=llm, streaming=streaming)
        self._system, self._mode = system, mode
        # LlamaIndex lets `additional_kwargs` overrule what a call says: an `extra_body` there would drop the documents without a word.
        others = dict(llm.additional_kwargs)
        self._given = others.pop("extra_body", None) or {}
        self._chat = llm.model_copy(update={"additional_kwargs": others})

    def _messages(self, query: str) -> list[ChatMessage]:
        system = [ChatMessage(role="system", content=self._system)] if self._system else []
        return [*system, ChatMessage(role="user", content=query)]

    def _extra(self, nodes: Sequence[NodeWithScore]) -> dict[str, Any]:
        return {**self._given, **documents_of(nodes, self._mode)}

    def _response(self, answer: ChatResponse, nodes: Sequence[NodeWithScore]) -> Response:
        metadata = {"cached_tokens": cached_tokens(answer)}
        return Response(answer.message.content, source_nodes=list(nodes), metadata=metadata)

    def synthesize(self, query: Any, nodes: list[NodeWithScore], additional_source_nodes: Sequence[NodeWithScore] | None = None, **_: Any) -> Any:
        """Answer a query over nodes; the nodes are sent in their order."""
        messages = self._messages(query.query_str if isinstance(query, QueryBundle) else str(query))
        sources = [*nodes, *(additional_source_nodes or [])]
        if self._streaming:
            parts = self._chat.stream_chat(messages, extra_body=self._extra(nodes))
            return StreamingResponse((part.delta or "" for part in parts), source_nodes=sources)
        return self._response(self._chat.chat(messages, extra_body=self._extra(nodes)), sources)

    async def asynthesize(self, query: Any, nodes: list[NodeWithScore], additional_source_nodes: Sequence[NodeWithScore] | None = None, **_: Any) -> Any:
        """The same without blocking; in one piece."""
        messages = self._messages(query.query_str if isinstance(query, QueryBundle) else str(query))
        answer = await self._chat.achat(messages, extra_body=self._extra(nodes))
        return self._response(answer, [*nodes, *(additional_source_nodes or [])])

    def get_response(self, query_str: str, text_chunks: Sequence[str], **_: Any) -> str:
        """Answer a query over bare texts."""
        extra = {**self._given, "documents": [text for text in text_chunks if text.strip()]}
        return self._chat.chat(self._messages(query_str), extra_body=extra).message.content or ""

    async def aget_response(self, query_str: str, text_chunks: Sequence[str], **_: Any) -> str:
        """The same without blocking."""
        extra = {**self._given, "documents": [text for text in text_chunks if text.strip()]}
        return (await self._chat.achat(self._messages(query_str), extra_body=extra)).message.content or ""

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        pass


def query_engine_with_documents(retriever: BaseRetriever, llm: OpenAILike, **options: Any) -> RetrieverQueryEngine:
    """A query engine over a retriever whose nodes are sent as `documents`; options are those of `DocumentsSynthesizer`."""
    return RetrieverQueryEngine(retriever, response_synthesizer=DocumentsSynthesizer(llm, **options))
