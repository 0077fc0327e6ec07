"""A KV connector for vLLM: Tributary prefills a prompt, vLLM takes its keys and values and decodes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import TributaryConnector

__all__ = ["TributaryConnector"]


def __getattr__(name: str) -> Any:
    # Loaded when vLLM asks for it, so that the rules can be imported and tested without vLLM.
    if name != "TributaryConnector":
        raise AttributeError(name)
    from .connector import TributaryConnector

    return TributaryConnector
