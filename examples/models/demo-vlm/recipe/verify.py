"""Asks Hugging Face's transformers the requests of a folder of `export.py`, and prints their answers.

    python3 verify.py FOLDER

A large page is asked whole here: with tiles in raster order a full prefill is the same. Pages have sizes
that the model reads as they are, so that nothing is resized.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from train import PATCH, patches

folder = Path(sys.argv[1])
tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
config = json.loads((folder / "config.json").read_text())
model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
wrong = 0
for file in sorted((folder / "requests").glob("*.json")):
    request = json.loads(file.read_text())
    ids, images = [config["text_config"]["bos_token_id"]], []
    for document in request["documents"]:
        if isinstance(document, str):
            ids += tokenizer.encode(document, add_special_tokens=False)
            continue
        pixels = torch.from_numpy(np.array(Image.open(file.parent / document["image"]).convert("RGB")))
        grid = (1, pixels.shape[0] // PATCH, pixels.shape[1] // PATCH)
        images.append((patches(pixels[None])[0], grid))
        rows = grid[1] * grid[2] // 4
        ids += [config["vision_start_token_id"]] + [config["image_token_id"]] * rows + [config["vision_end_token_id"]]
    ids += tokenizer.encode(request["query"], add_special_tokens=False)
    count = len(tokenizer.encode(request["answer"], add_special_tokens=False))
    for _ in range(count):
        row = torch.tensor([ids])
        with torch.no_grad():
            logits = model(input_ids=row, attention_mask=torch.ones_like(row), mm_token_type_ids=(row == config["image_token_id"]).int(),
                           pixel_values=torch.cat([rows for rows, _ in images]),
                           image_grid_thw=torch.tensor([grid for _, grid in images])).logits
        ids.append(int(logits[0, -1].argmax()))
    answer = tokenizer.decode(ids[-count:])
    wrong += answer != request["answer"]
    print(f"{file.name}: {answer}; expected {request['answer']}")
sys.exit(1 if wrong else 0)
