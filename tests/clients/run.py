import os, shutil
from clients import HERE, INSTALLED, ROOT
def environment():
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CLIENTS_ROOT": str(ROOT), "PYTHONPATH": f"{ROOT}/integrations/langchain:{ROOT}/integrations/llamaindex", "NO_COLOR":"1"}
def prepare_node():
    folder = INSTALLED / "node"
    if folder.is_dir():
        for file in HERE.glob("*.mjs"):
            shutil.copy(file, folder)
