"""The scheduler's side: states of requests, releases, counts. Needs Python alone."""

import pathlib
import sys
import threading
import time
import unittest
from types import SimpleNamespace

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parent)]

from standin import Prefill, StandIn
from tributary_vllm.handover import Server, Settings, Shape
from tributary_vllm.scheduler import Handovers

SHAPE = Shape(layers=3, kv_heads=2, head_dim=4, dtype="f32")
IDS = list(range(50, 71))


def request(prefill, name="r", **changes):
    values = {"request_id": name, "prompt_token_ids": list(IDS), "cache_salt": prefill.salt if prefill else None, "num_preemptions": 0,
              "kv_transfer_params": {"tributary": {"id": prefill.id}} if prefill else None, **changes}
    return SimpleNamespace(**values)


class States(unittest.TestCase):
    def setUp(self):
        self.stand_in = StandIn()
        self.stand_in.__enter__()
        self.addCleanup(self.stand_in.__exit__)
        self.handovers = Handovers(Settings(self.stand_in.url, ask_seconds=2), SHAPE)
        self.addCleanup(self.handovers.close)
        self.prefill = self.stand_in.add(Prefill(IDS, SHAPE, None, exact=False))

    def settle(self, request, computed=0, seconds=8):
        """Asks until the answer is there, as vLLM does at each step."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            rows, asynchronous = self.handovers.rows(request, computed)
            if rows is not None:
                return rows, asynchronous
            self.assertIs(asynchronous, False)
            time.sleep(0.005)
        self.fail("no answer")

    def load(self, request, computed=0):
        rows, _ = self.settle(request, computed)
        self.handovers.allocated(request, [7, 8], rows)
        return rows

    def exact(self, pattern, request, computed=0):
        with self.assertLogs("vllm.tributary", "INFO") as logs:
            self.assertEqual(self.settle(request, computed), (0, False))
            for _ in range(3):
                self.assertEqual(self.handovers.rows(request, computed), (0, False))
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertRegex(logs.output[0], pattern)
        self.assertEqual(self.handovers.take_loads(), [])

    def released(self, count, seconds=3):
        end = time.monotonic() + seconds
        while len(self.stand_in.released) < count and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.05)
        self.assertEqual(self.stand_in.released, [self.prefill.id] * count)

    def test_a_request_without_an_id_is_not_touched(self):
        plain = request(None)
        self.assertEqual(self.handovers.rows(plain, 0), (0, False))
        self.assertIsNone(self.handovers.finished(plain))
        self.assertEqual(self.stand_in.asked, [])

    def test_an_import(self):
        mine = request(self.prefill)
        # The last token is vLLM's own.
        self.assertEqual(self.settle(mine), (20, True))
        # Without blocks vLLM asks again.
        self.assertEqual(self.handovers.rows(mine, 0), (20, True))
        self.handovers.allocated(mine, [7, 8], 20)
        (load,) = self.handovers.take_loads()
        self.assertEqual((load.request, load.first, load.rows, load.blocks, load.reference.id), ("r", 0, 20, [7, 8], self.prefill.id))
        self.assertEqual(self.handovers.take_loads(), [])
        # After the load vLLM allocates again, with nothing more to load.
        self.handovers.received(["r"], [])
        self.handovers.allocated(mine, [7, 8], 0)
        self.assertEqual(self.handovers.take_loads(), [])
        self.released(1)
        self.assertEqual(self.handovers.finished(mine), {"tributary": {"id": self.prefill.id, "imported_tokens": 20}})
        self.assertEqual(self.handovers.take_counts(), {"imports": 1, "imported_tokens": 20})
        self.assertEqual(self.handovers.take_counts(), {})

    def test_only_rows_after_a_local_hit_are_loaded(self):
        mine = request(self.prefill)
        self.assertEqual(self.load(mine, 16), 4)
        (load,) = self.handovers.take_loads()
        self.assertEqual((load.first, load.rows), (16, 4))

    def test_a_prompt_that_goes_on_takes_all_prefilled_rows(self):
        mine = request(self.prefill, prompt_token_ids=[*IDS, 7, 8])
        self.assertEqual(self.load(mine, 16), 5)
        (load,) = self.handovers.take_loads()
        self.assertEqual((load.first, load.rows), (16, 5))
        # A local hit beyond the prefilled rows leaves nothing to load.
        self.exact("prefix cache", request(self.prefill, "s", prompt_token_ids=[*IDS, *range(40)]), computed=48)

    def test_a_whole_local_hit_loads_nothing_and_releases(self):
        self.exact("prefix cache holds its prompt", request(self.prefill), computed=20)
        self.released(1)

    def test_a_slow_server_never_blocks(self):
        gate = threading.Event()
        self.addCleanup(gate.set)

        class Slow(Server):
            def describe(self, id, seconds):
                gate.wait(20)
                return super().describe(id, seconds)

        self.handovers = Handovers(Settings(self.stand_in.url, ask_seconds=0.2), SHAPE, Slow)
        began = time.monotonic()
        self.assertEqual(self.handovers.rows(request(self.prefill), 0), (None, False))
        self.assertLess(time.monotonic() - began, 0.1)
        self.exact("did not answer in time", request(self.prefill))

    def test_reasons(self):
        unknown = Prefill(IDS, SHAPE, None)
        for pattern, given in (
            ("does not know its id", request(unknown)),
            ("cache_salt", request(self.prefill, cache_salt=None)),
            ("cache_salt", request(self.prefill, cache_salt="x")),
            ("does not begin with the prefilled one", request(self.prefill, prompt_token_ids=IDS[::-1])),
            ("no valid id", request(self.prefill, kv_transfer_params={"tributary": {"id": "x"}})),
            ("another server", request(self.prefill, kv_transfer_params={"tributary": {"id": self.prefill.id, "url": "http://b"}})),
            ("embeddings", request(self.prefill, prompt_token_ids=None)),
            ("LoRA", request(self.prefill, lora_request=object())),
            ("images", request(self.prefill, mm_features=[object()])),
            ("log-probabilities", request(self.prefill, skip_reading_prefix_cache=True)),
        ):
            with self.subTest(pattern):
                self.exact(pattern, given)
                answer = self.handovers.finished(given)
                self.assertEqual(answer["tributary"]["imported_tokens"], 0)
                self.assertRegex(answer["tributary"]["reason"], pattern)
        # None of them had a right to the KV, so none of them released it.
        self.released(0)
        self.assertEqual(self.handovers.totals["imports"], 0)

    def test_a_failed_load_is_computed_whole(self):
        mine = request(self.prefill)
        self.load(mine)
        self.handovers.received(["r"], ["r"])
        self.assertEqual(self.handovers.rows(mine, 0), (0, False))
        self.released(1)
        answer = self.handovers.finished(mine)["tributary"]
        self.assertEqual(answer["imported_tokens"], 0)
        self.assertIn("did not come", answer["reason"])
        self.assertEqual(self.handovers.take_counts(), {"computed_by_vllm": 1})

    def test_preemption_after_the_import_computes(self):
        mine = request(self.prefill)
        self.load(mine)
        self.handovers.received(["r"], [])
        self.released(1)
        self.handovers.take_loads()
        self.exact("preempted", mine)
        self.assertEqual(self.handovers.finished(mine)["tributary"]["imported_tokens"], 20)

    def test_an_end_while_loading_releases(self):
        mine = request(self.prefill)
        self.load(mine)
        self.handovers.finished(mine)
        self.released(1)
        # The workers report it all the same.
        self.handovers.received(["r"], [])
        self.assertEqual(self.handovers.totals["imports"], 0)

    def test_an_end_before_the_load_leaves_the_id(self):
        mine = request(self.prefill)
        self.settle(mine)
        self.handovers.finished(mine)
        self.released(0)

    def test_the_last_of_several_requests_releases(self):
        first, second = request(self.prefill, "a"), request(self.prefill, "b")
        self.load(first)
        self.load(second)
        self.handovers.received(["a"], [])
        self.released(0)
        self.handovers.received(["b"], [])
        self.released(1)

    def test_a_stranger_does_not_release(self):
        mine, stranger = request(self.prefill, "a"), request(self.prefill, "b", cache_salt=None)
        self.load(mine)
        self.handovers.take_loads()
        self.exact("cache_salt", stranger)
        self.handovers.finished(stranger)
        self.released(0)
        self.handovers.received(["a"], [])
        self.released(1)

    def test_the_key_goes_to_the_configured_server_only(self):
        keys = []

        class Watching(Server):
            def __init__(self, url, key):
                keys.append((url, key))
                super().__init__(url, key)

        with StandIn() as other:
            prefill = other.add(Prefill(IDS, SHAPE, None))
            settings = Settings(self.stand_in.url, allow_url=True)
            self.handovers = Handovers(settings, SHAPE, Watching)
            self.handovers._key = "secret"
            self.settle(request(prefill, kv_transfer_params={"tributary": {"id": prefill.id, "url": other.url}}))
            self.settle(request(self.prefill, "s"))
            self.assertEqual(keys, [(other.url, None), (self.stand_in.url, "secret")])


if __name__ == "__main__":
    unittest.main()
