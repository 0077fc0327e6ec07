"""Logits and token ids by llama.cpp itself (libllama of node-llama-cpp, through ctypes), to judge GGUF files."""
import ctypes as C, pathlib

class Opaque(C.Structure):  # by value on the stack: longer than any of llama.cpp's parameter structs
    _fields_ = [("bytes", C.c_uint8 * 1024)]

class Batch(C.Structure):
    _fields_ = [("n_tokens", C.c_int32)] + [(n, C.c_void_p) for n in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")]

class Llama:
    def __init__(self, libraries):
        libraries = pathlib.Path(libraries)
        for name in ["libggml-base.so", "libggml.v0.4.0.so", "libllama.v0.4.0.so"]:
            last = C.CDLL(str(libraries / name), mode=C.RTLD_GLOBAL)
            if "ggml.v" in name: self.ggml = last
        self.lib = last
        self.ggml.ggml_backend_load_all_from_path.argtypes = [C.c_char_p]
        self.ggml.ggml_backend_load_all_from_path(str(libraries).encode())
        L = self.lib
        quiet = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)
        self.quiet = quiet(lambda level, text, _: print(text.decode(errors="replace"), end="") if level == 4 else None)
        L.llama_log_set(self.quiet, None)
        for f, r, a in [("llama_model_default_params", Opaque, []), ("llama_context_default_params", Opaque, []),
                        ("llama_model_load_from_file", C.c_void_p, [C.c_char_p, Opaque]), ("llama_init_from_model", C.c_void_p, [C.c_void_p, Opaque]),
                        ("llama_batch_get_one", Batch, [C.c_void_p, C.c_int32]), ("llama_decode", C.c_int32, [C.c_void_p, Batch]),
                        ("llama_get_logits_ith", C.POINTER(C.c_float), [C.c_void_p, C.c_int32]), ("llama_get_memory", C.c_void_p, [C.c_void_p]),
                        ("llama_memory_clear", None, [C.c_void_p, C.c_bool]), ("llama_model_get_vocab", C.c_void_p, [C.c_void_p]),
                        ("llama_vocab_n_tokens", C.c_int32, [C.c_void_p]), ("llama_free", None, [C.c_void_p]), ("llama_model_free", None, [C.c_void_p]),
                        ("llama_tokenize", C.c_int32, [C.c_void_p, C.c_char_p, C.c_int32, C.c_void_p, C.c_int32, C.c_bool, C.c_bool])]:
            fn = getattr(L, f); fn.restype, fn.argtypes = r, a
        L.llama_backend_init()

    def judge(self, path, ids, lengths, texts=()):
        L = self.lib
        model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
        assert model, path
        vocab = L.llama_model_get_vocab(model); n = L.llama_vocab_n_tokens(vocab)
        params = L.llama_context_default_params()
        C.memmove(C.addressof(params), (C.c_uint32 * 2)(512, 512), 8)  # n_ctx, n_batch
        context = L.llama_init_from_model(model, params)
        assert context
        out = []
        for length in lengths:
            L.llama_memory_clear(L.llama_get_memory(context), True)
            tokens = (C.c_int32 * length)(*ids[:length])
            assert L.llama_decode(context, L.llama_batch_get_one(tokens, length)) == 0
            out.append(L.llama_get_logits_ith(context, -1)[:n])
        found = []
        for text in texts:
            space = (C.c_int32 * 4096)(); raw = text.encode()
            count = L.llama_tokenize(vocab, raw, len(raw), space, 4096, False, True)
            found.append(list(space[:count]))
        L.llama_free(context); L.llama_model_free(model)
        return out, found
