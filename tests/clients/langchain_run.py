"""LangChain: a chat model, its stream, and retrieved documents through the integration of this project."""

import asyncio

import kit
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_openai import ChatOpenAI, OpenAI
from tributary_langchain import chain_with_documents

QUERY, DOCUMENTS = kit.example()


class Words(BaseRetriever):
    """Local texts, those first that share most words with the query."""

    texts: list[str]
    backwards: bool = False

    def _get_relevant_documents(self, query, *, run_manager):
        wanted = set(query.split())
        found = sorted(self.texts, key=lambda text: -len(wanted & set(text.split())))
        return [Document(page_content=text, metadata={"source": f"{number}.txt"}) for number, text in enumerate(found[:: -1 if self.backwards else 1])]


def model(job, **more):
    return ChatOpenAI(base_url=f"{job.url}/v1", api_key="none", model=job.model, max_retries=0, **{"max_tokens": 4, **more})


def answers(job, result):
    def invoke():
        found = model(job, temperature=0, extra_body={"documents": DOCUMENTS}).invoke(QUERY)
        assert found.content.strip().startswith("lyon"), found

    def stream():
        parts = list(model(job, stream_usage=True, extra_body={"documents": DOCUMENTS}).stream(QUERY))
        assert "".join(part.content for part in parts).strip().startswith("lyon"), parts
        assert sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata) == 4, parts

    def turns():
        history = [SystemMessage("it rains slowly today ."), HumanMessage(QUERY), AIMessage("lyon ."), HumanMessage(QUERY)]
        assert model(job).bind(extra_body={"documents": DOCUMENTS}).invoke(history).content

    def batch():
        found = model(job, extra_body={"documents": DOCUMENTS}).batch([QUERY, QUERY])
        assert len({answer.content for answer in found}) == 1, found

    def texts():
        completion = OpenAI(base_url=f"{job.url}/v1", api_key="none", model=job.model, max_tokens=4, max_retries=0, extra_body={"documents": DOCUMENTS})
        assert completion.invoke(QUERY).strip().startswith("lyon")

    def retrieved():
        prompt = ChatPromptTemplate.from_messages([("user", "{question}")])
        for backwards in (False, True):
            chain = chain_with_documents(Words(texts=DOCUMENTS, backwards=backwards), prompt, model(job))
            answer = chain.invoke(QUERY)
        cached = answer.usage_metadata["input_token_details"]["cache_read"]
        assert cached >= 400, f"{cached} tokens cached after the order changed"

    def retrieved_stream():
        # What the model's own `extra_body` says stands beside the documents.
        prompt = ChatPromptTemplate.from_messages([("user", "{question}")])
        trace = model(job, extra_body={"tributary": {"method": "trace"}})
        chain = chain_with_documents(Words(texts=DOCUMENTS), prompt, trace, question="question")
        parts = [part.content for part in chain.stream({"question": QUERY})]
        assert len([part for part in parts if part]) > 1 and "".join(parts).strip().startswith("lyon"), parts
        assert asyncio.run(chain.ainvoke({"question": QUERY})).content == "".join(parts)

    for check in (invoke, stream, turns, batch, texts, retrieved, retrieved_stream):
        result.attempt(check.__name__, check)


def measured(job, result):
    chat = model(job, max_tokens=kit.ANSWER_TOKENS)
    kit.times(job, result, lambda prompt: (part.content for part in chat.stream(prompt)))


kit.main(answers, measured, "langchain-openai")
