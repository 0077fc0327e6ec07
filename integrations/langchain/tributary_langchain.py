"""Retrieved LangChain documents as the `documents` of a request, so that Tributary caches and reuses each of them.

A prompt that holds the retrieved texts is one long text to any server: another order of the same texts is computed anew. Sent as
`documents`, each text is prefilled once and reused at any later place. Needs langchain-core and langchain-openai.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI


def documents_of(documents: Iterable[Document], title: str | None = None) -> dict[str, Any]:
    """Turn documents into the request's `extra_body`, in their order.

    `title` names the metadata key that is sent as the documents' title. A title is part of what the model reads and of what
    is cached. Documents without text are left out.
    """
    found = []
    for document in documents:
        if not document.page_content.strip():
            continue
        name = document.metadata.get(title) if title else None
        found.append({"title": str(name), "text": document.page_content} if name else document.page_content)
    return {"documents": found}


def chain_with_documents(
    retriever: BaseRetriever,
    prompt: BasePromptTemplate[Any],
    model: ChatOpenAI,
    *,
    question: str | None = None,
    title: str | None = None,
) -> Runnable[Any, Any]:
    """A chain that retrieves, sends what it found as `documents`, and asks `prompt`, which has no place for the context.

    The input goes to the retriever and to the prompt. If it is a mapping, `question` names the entry that is searched for. The
    answer is the model's message: `answer.usage_metadata["input_token_details"]["cache_read"]` counts tokens that were reused.
    """
    search = itemgetter(question) if question else lambda given: given

    def answering(documents: Iterable[Document]) -> Runnable[Any, Any]:
        extra = {**(model.extra_body or {}), **documents_of(documents, title)}
        return prompt | model.bind(extra_body=extra)

    # A lambda that returns a runnable has it run on the same input, streamed where the chain is streamed.
    def find(given: Any, config: RunnableConfig) -> Runnable[Any, Any]:
        return answering(retriever.invoke(search(given), config))

    async def afind(given: Any, config: RunnableConfig) -> Runnable[Any, Any]:
        return answering(await retriever.ainvoke(search(given), config))

    return RunnableLambda(find, afunc=afind, name="chain_with_documents")
