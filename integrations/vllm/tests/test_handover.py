"""The rules of what vLLM may take, and the HTTP calls, against the stand-in server. Needs Python alone."""

import pathlib
import random
import sys
import tempfile
import threading
import time
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parent)]

from standin import Prefill, StandIn, blake2
from tributary_vllm.handover import Part, Reference, Refused, Server, Settings, Shape, check, heads_of_rank, pieces

SHAPE = Shape(layers=3, kv_heads=2, head_dim=4, dtype="f32")
IDS = list(range(50, 71))
OTHER_URL = "http://127.0.0.1:1"


def random_kv(layer):
    return random.Random(layer).randbytes(len(IDS) * SHAPE.row_bytes)


class Rules(unittest.TestCase):
    def told(self, **changes):
        return {**Prefill(IDS, SHAPE, random_kv, exact=False).told, **changes}

    def refused(self, pattern, told, prompt=IDS, salt=None, **options):
        with self.assertRaisesRegex(Refused, pattern):
            check(told, prompt, salt or told["cache_salt"], SHAPE, **options)

    def test_planned_and_done_are_taken(self):
        for status in ("planned", "done"):
            told = self.told(status=status)
            check(told, IDS, told["cache_salt"], SHAPE)
        check(self.told(exact=True, cache_salt=None), IDS, None, SHAPE)
        # Exact KV may stand under a salt that the client chose for reasons of its own.
        check(self.told(exact=True, cache_salt=None), IDS, "of a tenant", SHAPE)

    def test_each_value_is_compared(self):
        self.refused("version 2", self.told(version=2))
        self.refused("version None", self.told(version=None))
        self.refused("prefill failed: no memory", self.told(status="failed", error={"message": "no memory"}))
        self.refused("prefill is lost", self.told(status="lost"))
        for name, value in {"layers": 4, "kv_heads": 1, "head_dim": 8, "dtype": "bf16"}.items():
            self.refused(f"server's {name} is {value}", self.told(**{name: value}))
        self.refused("fingerprint", self.told(), fingerprint="1" * 64)
        check(self.told(exact=True), IDS, None, SHAPE, "0" * 64)

    def test_the_prompt_must_begin_with_the_prefilled_one(self):
        for prompt in ([*IDS[:-1], 999], [999, *IDS[1:]], [0, *IDS], IDS[:-1], []):
            self.refused("does not begin with the prefilled one", self.told(), prompt)
        self.refused("does not begin with the prefilled one", self.told(token_ids=[], tokens=0), IDS)

    def test_the_last_token_is_not_taken(self):
        told = self.told()
        for prompt, rows in ((IDS, 20), ([*IDS, 7], 21), ([*IDS, 7, 8, 9], 21)):
            self.assertEqual(check(told, prompt, told["cache_salt"], SHAPE), rows)
        self.refused("count differ", self.told(tokens=20))
        self.refused("count differ", self.told(token_ids=None))

    def test_approximate_kv_needs_its_own_salt(self):
        told = self.told()
        for salt in (None, "", "tributary-" + "0" * 64, told["cache_salt"][:-1], told["cache_salt"] + "0"):
            with self.assertRaisesRegex(Refused, "cache_salt is not that"):
                check(told, IDS, salt, SHAPE)
        for none in (None, ""):
            with self.assertRaisesRegex(Refused, "tells no cache_salt"):
                check(self.told(cache_salt=none), IDS, none, SHAPE)
        # Anything but `true` counts as approximate.
        for exact in (None, "true", 1):
            with self.assertRaisesRegex(Refused, "cache_salt is not that"):
                check(self.told(exact=exact), IDS, None, SHAPE)

    def test_references(self):
        settings = Settings("http://a")
        id = "kv-" + "0a" * 16
        self.assertIsNone(Reference.read(None, settings))
        self.assertIsNone(Reference.read({"do_remote_prefill": True}, settings))
        self.assertEqual(Reference.read({"tributary": {"id": id}}, settings), Reference(id, "http://a"))
        for bad in ("kv-", id + "0", id.upper(), "kv-" + "0" * 30 + "/x", id + "\n", None, 7):
            with self.assertRaisesRegex(Refused, "no valid id"):
                Reference.read({"tributary": {"id": bad}}, settings)
        with self.assertRaisesRegex(Refused, "no valid id"):
            Reference.read({"tributary": id}, settings)
        other = {"tributary": {"id": id, "url": "http://b"}}
        with self.assertRaisesRegex(Refused, "names another server"):
            Reference.read(other, settings)
        self.assertEqual(Reference.read(other, Settings("http://a", allow_url=True)).url, "http://b")

    def test_settings(self):
        for given, pattern in (({}, 'needs the server\'s "url"'), ({"url": "http://a", "timeout": 3}, "unknown .*timeout")):
            with self.assertRaisesRegex(ValueError, pattern):
                Settings.read(given)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# mine\n\n secret \n")
            file.flush()
            self.assertEqual(Settings.read({"url": "http://a", "api_key_file": file.name}).api_key(), "secret")

    def test_heads_of_ranks(self):
        self.assertEqual([list(heads_of_rank(8, 4, rank)) for rank in range(4)], [[0, 1], [2, 3], [4, 5], [6, 7]])
        self.assertEqual([list(heads_of_rank(2, 2, rank)) for rank in range(2)], [[0], [1]])
        self.assertEqual([list(heads_of_rank(2, 8, rank)) for rank in range(8)], [[0]] * 4 + [[1]] * 4)
        self.assertEqual(list(heads_of_rank(3, 1, 0)), [0, 1, 2])

    def test_pieces(self):
        self.assertEqual(list(pieces(32, 10, 4)), [(32, 4), (36, 4), (40, 2)])
        self.assertEqual(list(pieces(0, 4, 4)), [(0, 4)])
        self.assertEqual(list(pieces(5, 1, 100)), [(5, 1)])


class Calls(unittest.TestCase):
    def setUp(self):
        self.stand_in = StandIn(key="secret")
        self.stand_in.__enter__()
        self.addCleanup(self.stand_in.__exit__)
        self.prefill = self.stand_in.add(Prefill(IDS, SHAPE, random_kv))

    def server(self, key="secret", url=None):
        server = Server(url or self.stand_in.url, key, blake2)
        self.addCleanup(server.close)
        return server

    def layer(self, layer=1, first=4, rows=3, seconds=5.0, server=None):
        return (server or self.server()).layer(self.prefill.id, layer, range(first, first + rows), Part(SHAPE, range(2)), time.monotonic() + seconds)

    def test_rows_of_a_layer(self):
        server = self.server()
        for layer, first, rows in ((0, 0, 21), (1, 4, 3), (2, 20, 1)):
            expected = random_kv(layer)[first * SHAPE.row_bytes:(first + rows) * SHAPE.row_bytes]
            self.assertEqual(self.layer(layer, first, rows, server=server), expected)

    def test_damage_is_noticed_in_any_row(self):
        for row in (4, 5, 6):
            self.prefill.damage = (1, row)
            with self.assertRaisesRegex(Refused, "layer 1, rows 4-7: damaged"):
                self.layer()
        self.prefill.damage = (1, 7)
        self.layer()

    def test_short_answers_and_errors(self):
        self.prefill.cut_layer = 1
        with self.assertRaisesRegex(Refused, r"\d+ of 224 bytes came"):
            self.layer()
        self.prefill.cut_layer, self.prefill.fails_at_layer = None, 1
        with self.assertRaisesRegex(Refused, "answers 502.*a rank has died"):
            self.layer()
        self.stand_in.drop(self.prefill)
        with self.assertRaisesRegex(Refused, "answers 404"):
            self.layer()

    def test_a_late_layer_ends_at_the_deadline(self):
        self.prefill.gate = threading.Event()
        self.addCleanup(self.prefill.gate.set)
        began = time.monotonic()
        with self.assertRaisesRegex(Refused, "not there in time"):
            self.layer(seconds=0.3)
        self.assertLess(time.monotonic() - began, 3)

    def test_close_ends_a_waiting_read(self):
        self.prefill.gate = threading.Event()
        self.addCleanup(self.prefill.gate.set)
        server, said = self.server(), []

        def read():
            try:
                self.layer(seconds=20, server=server)
            except Refused as why:
                said.append(str(why))

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.2)
        server.close()
        thread.join(5)
        self.assertFalse(thread.is_alive())
        self.assertEqual(len(said), 1)

    def test_descriptions(self):
        self.assertEqual(self.server().describe(self.prefill.id, 5)["token_ids"], IDS)
        unknown = "kv-" + "0" * 32
        for server, id, pattern in ((self.server(), unknown, "does not know its id"), (self.server("wrong"), self.prefill.id, "answers 401"),
                                    (self.server(url=OTHER_URL), self.prefill.id, "does not answer")):
            with self.assertRaisesRegex(Refused, pattern):
                server.describe(id, 5)
        self.prefill.told["id"] = unknown
        with self.assertRaisesRegex(Refused, "of another id"):
            self.server().describe(self.prefill.id, 5)

    def test_release(self):
        self.server().release(self.prefill.id, 5)
        self.assertEqual(self.stand_in.released, [self.prefill.id])
        # A server that is gone is no error.
        self.server(url=OTHER_URL).release(self.prefill.id, 5)

    def test_urls(self):
        for url in ("ftp://a", "a:80", "http://", "http://a/?x=1"):
            with self.assertRaisesRegex(Refused, "not the URL"):
                Server(url, None)
        # Clients write the URL with or without /v1.
        self.assertEqual(self.server(url=self.stand_in.url + "/v1/").describe(self.prefill.id, 5)["id"], self.prefill.id)


if __name__ == "__main__":
    unittest.main()
