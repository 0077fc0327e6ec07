"""Runs Hugging Face's models and image processors on two tiny models of text and pictures and writes what they compute.
f32, one thread, eager attention; recorded with transformers 5.24.0, torch 2.15.0 and torchvision 0.29.2 on a CPU.

`python pictures_draw.py; python pictures_models.py; python pictures_record.py` draws the pictures into `vlm`, writes the
models' folders, and records into each of these:

- `images.safetensors`, by picture: `.resized` U8 `[rows, columns, 3]`, `.grid_thw`, `.features` `[tokens, 64]`, `.deepstack.0..2`;
  of picture d also `.patch_embed` and `.block.N` after each block of the tower (Qwen2.5-VL: in the order of windows);
- `CASE.safetensors`, a whole prompt: `input_ids`, `position_ids` `[3, N]`, `grid_thw`, `logits` `[N, 272]`, `generated` (four
  tokens, the most likely ones); of `one` also `layer.N`, the output of each decoder layer before DeepStack adds to it;
- `cases.json`: the parts of each prompt, and `position_delta`, the largest position + 1 - tokens.

`vlm/rgb.safetensors` has the pictures decoded, transparency on white.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torchvision.transforms.v2 import functional as tvF
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

HERE = Path(__file__).parent

# Parts: a text with marks, or an image by its name. `<i>` stands for an image's marks: vision_start, a pad an image token, vision_end.
CASES = {
    "text": ["<|im_start|>user\nno image at all<|im_end|>\n<|im_start|>assistant\n"],
    "one": ["<|im_start|>user\nLook: ", {"image": "a"}, " what number is under the red square?<|im_end|>\n<|im_start|>assistant\n"],
    "several": ["<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nfirst ", {"image": "a"}, " then ", {"image": "b"}, {"image": "d"},
                " which page has the square?<|im_end|>\n<|im_start|>assistant\n"],
    "first": [{"image": "c"}, "which bar is the highest?"],
    "last": ["the page: ", {"image": "b"}],
    # The prompts of `selective.py`.
    "pages": ["<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n", "Page 1: the total is 19. ", {"image": "a"}, "Page 3. ", {"image": "b"},
              " see the figure ", {"image": "d"}, " Page 5 ends.", "what number is under the red square?<|im_end|>\n<|im_start|>assistant\n"],
    "tiles": ["<|im_start|>user\n", {"image": "c"}, "which bar is the highest?<|im_end|>\n<|im_start|>assistant\n"],
}


def prompt(parts, tokenizer, marks, grids):
    ids, images = [], []
    for part in parts:
        if isinstance(part, str):
            ids += tokenizer.encode(part, add_special_tokens=False).ids
        else:
            t, h, w = grids[part["image"]]
            ids += [marks["vision_start"]] + [marks["image"]] * (t * h * w // 4) + [marks["vision_end"]]
            images.append(part["image"])
    return torch.tensor([ids]), images


class Watch:
    """What modules put out, by name."""

    def __init__(self, modules):
        self.found = {}
        self.hooks = [module.register_forward_hook(self.take(name)) for name, module in modules.items()]

    def take(self, name):
        def hook(_module, _inputs, output):
            output = output[0] if isinstance(output, tuple) else output
            self.found[name] = output.detach().clone().contiguous()
        return hook

    def close(self):
        [hook.remove() for hook in self.hooks]
        return self.found


def dump(folder):
    config = json.loads((folder / "config.json").read_text())
    preprocessor = json.loads((folder / "preprocessor_config.json").read_text())
    known = {key: value for key, value in preprocessor.items() if key not in ("processor_class", "image_processor_type")}
    fast, pil = Qwen2VLImageProcessor(**known), Qwen2VLImageProcessorPil(**known)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    visual, decoder = model.model.visual, model.model.language_model
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    marks = {name: config[f"{name}_token_id"] for name in ("image", "vision_start", "vision_end")}

    images, grids, pixels, notes, decoded = {}, {}, {}, {}, {}
    for path in sorted((HERE / "vlm").glob("*.png")):
        name, image = path.stem, Image.open(path)
        made, by_pil = fast(images=[image], return_tensors="pt"), pil(images=[image], return_tensors="pt")
        grid = made["image_grid_thw"][0].tolist()
        size = fast.patch_size
        height, width = grid[1] * size, grid[2] * size
        rgb = fast.convert_to_rgb(tvF.pil_to_tensor(image))
        resized = tvF.resize(rgb, [height, width], interpolation=tvF.InterpolationMode.BICUBIC, antialias=True)
        mean, std = torch.tensor(fast.image_mean).view(3, 1, 1), torch.tensor(fast.image_std).view(3, 1, 1)
        plain = (resized.float() - 255 * mean) / (255 * std)
        patches = plain.reshape(3, grid[1] // 2, 2, size, grid[2] // 2, 2, size).permute(1, 4, 2, 5, 0, 3, 6)
        patches = patches[..., None, :, :].expand(*patches.shape[:5], 2, size, size).reshape(grid[1] * grid[2], -1)
        assert torch.equal(patches, made["pixel_values"]) or (patches - made["pixel_values"]).abs().max() < 1e-6, name
        shown = Image.fromarray(rgb.permute(1, 2, 0).numpy())
        again = torch.from_numpy(numpy.array(shown.resize((width, height), Image.Resampling.BICUBIC)))
        differ = (again.permute(2, 0, 1).int() - resized.int()).abs()
        notes[name] = {"mode": image.mode, "size": list(image.size), "grid_thw": grid, "tokens": grid[1] * grid[2] // 4,
                       "pillow_differs_in": int((differ > 0).sum()), "pillow_differs_by": int(differ.max()),
                       "pil_processor_differs_by": float((made["pixel_values"] - by_pil["pixel_values"]).abs().max())}
        assert by_pil["image_grid_thw"][0].tolist() == grid
        grids[name], pixels[name] = grid, made["pixel_values"]
        decoded[name] = rgb.permute(1, 2, 0).contiguous()
        images[f"{name}.resized"] = resized.permute(1, 2, 0).contiguous()
        images[f"{name}.grid_thw"] = made["image_grid_thw"]
        watch = Watch({f"{name}.block.{index}": block for index, block in enumerate(visual.blocks)} | {f"{name}.patch_embed": visual.patch_embed})
        with torch.no_grad():
            seen = model.model.get_image_features(made["pixel_values"], made["image_grid_thw"], return_dict=True)
        inner = watch.close()
        images[f"{name}.features"] = torch.cat(seen.pooler_output).contiguous()
        for index, level in enumerate(getattr(seen, "deepstack_features", None) or []):
            images[f"{name}.deepstack.{index}"] = torch.cat(level).contiguous()
        if name == "d":
            images |= inner
    save_file(images, folder / "images.safetensors")
    save_file(decoded, HERE / "vlm" / "rgb.safetensors")

    cases = {}
    for case, parts in CASES.items():
        ids, names = prompt(parts, tokenizer, marks, grids)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": (ids == marks["image"]).int()}
        grid_thw = torch.tensor([grids[name] for name in names]) if names else None
        if names:
            inputs |= {"pixel_values": torch.cat([pixels[name] for name in names]), "image_grid_thw": grid_thw}
            position_ids, deltas = model.model.get_rope_index(ids, inputs["mm_token_type_ids"], grid_thw, attention_mask=inputs["attention_mask"])
        else:
            position_ids, deltas = torch.arange(ids.shape[1]).expand(3, 1, -1), torch.zeros(1, 1, dtype=torch.long)
        watch = Watch({f"layer.{index}": layer for index, layer in enumerate(decoder.layers)})
        with torch.no_grad():
            model.model.rope_deltas = None
            logits = model(**inputs, use_cache=False).logits[0]
            # Generation goes on at the position after the largest.
            given = {key: value for key, value in inputs.items()}
            generated = model.generate(**given, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)[0, ids.shape[1]:]
        layers = watch.close() if case == "one" else watch.close() and {}
        if case == "one":  # the hooks saw the last step of generation; once more for the prompt
            watch = Watch({f"layer.{index}": layer for index, layer in enumerate(decoder.layers)})
            with torch.no_grad():
                model.model.rope_deltas = None
                model(**inputs, use_cache=False)
            layers = {name: value[0] for name, value in watch.close().items()}
        out = {"input_ids": ids[0], "position_ids": position_ids[:, 0].contiguous(), "logits": logits.contiguous(), "generated": generated.contiguous()}
        if names:
            out["grid_thw"] = grid_thw
        save_file(out | {name: value.contiguous() for name, value in layers.items()}, folder / f"{case}.safetensors")
        cases[case] = {"parts": parts, "images": names, "tokens": ids.shape[1], "position_delta": int(deltas[0, 0])}
    about = {"transformers": transformers.__version__, "torch": torch.__version__, "images": notes, "cases": cases}
    (folder / "cases.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ["qwen3vl-tiny", "qwen25vl-tiny"]:
        dump(HERE / name)
