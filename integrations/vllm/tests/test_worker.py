"""The worker's side: threads that fetch, writes on the caller's thread, failures and ends. Needs Python alone."""

import pathlib
import random
import sys
import threading
import time
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parent)]

from standin import Prefill, StandIn, blake2, rows_of
from tributary_vllm.handover import Part, Reference, Server, Settings, Shape
from tributary_vllm.scheduler import Load
from tributary_vllm.worker import PIECES_HELD, Loads

SHAPE = Shape(layers=3, kv_heads=2, head_dim=4, dtype="f32")
ALL, SECOND = Part(SHAPE, range(2)), Part(SHAPE, range(1, 2))
IDS = list(range(50, 71))


def random_kv(layer):
    return random.Random(layer).randbytes(len(IDS) * SHAPE.row_bytes)


class Fetching(unittest.TestCase):
    def setUp(self):
        self.stand_in = StandIn()
        self.stand_in.__enter__()
        self.addCleanup(self.stand_in.__exit__)
        self.prefill = self.stand_in.add(Prefill(IDS, SHAPE, random_kv))
        self.cache, self.threads, self.part = {}, set(), ALL
        self.loads = self.make()

    def make(self, piece_rows=5, **settings):
        loads = Loads(Settings(self.stand_in.url, **settings), self.part, range(SHAPE.layers), lambda url, key: Server(url, key, blake2),
                      piece_rows * self.part.row_bytes)
        self.addCleanup(loads.close)
        return loads

    def load(self, name="r", first=0, rows=20, prefill=None):
        return Load(name, Reference((prefill or self.prefill).id, self.stand_in.url), first, rows, [1, 2])

    def write(self, load, piece):
        self.threads.add(threading.current_thread())
        for at in range(piece.rows):
            self.cache[load.request, piece.layer, piece.first + at] = bytes(piece.data[at * self.part.row_bytes:(at + 1) * self.part.row_bytes])

    def until_finished(self, budget=1 << 20, seconds=8):
        finished, failed, end = set(), set(), time.monotonic() + seconds
        while time.monotonic() < end and not finished:
            self.loads.write(budget, self.write)
            finished, failed = self.loads.take_finished()
            time.sleep(0.002)
        return finished, failed

    def check(self, name="r", first=0, rows=20):
        expected = {(name, layer, row): rows_of(random_kv(layer), self.part, row, 1)
                    for layer in range(SHAPE.layers) for row in range(first, first + rows)}
        self.assertEqual(self.cache, expected)

    def test_every_row_of_every_layer_comes_once(self):
        for first, rows, piece_rows in ((0, 20, 5), (16, 4, 5), (3, 17, 7), (0, 20, 100), (0, 1, 1)):
            with self.subTest(first=first, rows=rows, piece_rows=piece_rows):
                self.cache.clear()
                self.loads = self.make(piece_rows)
                self.loads.start(self.load(first=first, rows=rows))
                self.assertEqual(self.until_finished(), ({"r"}, set()))
                self.check(first=first, rows=rows)
                self.assertEqual(self.loads.take_finished(), (set(), set()))
        self.assertEqual(self.threads, {threading.current_thread()})

    def test_a_tensor_parallel_worker_gets_its_heads_alone(self):
        self.part = SECOND
        self.loads = self.make()
        self.loads.start(self.load())
        self.assertEqual(self.until_finished(), ({"r"}, set()))
        self.check()
        asked = [path for path, _ in self.stand_in.asked]
        self.assertTrue(all(path.endswith("&first_head=1&heads=1") for path in asked), asked)

    def test_nothing_is_finished_before_it_is_written(self):
        self.loads.start(self.load(rows=5))
        time.sleep(0.3)
        self.assertEqual(self.loads.take_finished(), (set(), set()))

    def test_a_thread_holds_few_pieces(self):
        self.loads.start(self.load())
        time.sleep(0.5)
        self.assertEqual(self.stand_in.rows_sent, PIECES_HELD * 5)
        self.assertEqual(self.until_finished(), ({"r"}, set()))
        self.check()

    def test_a_step_writes_no_more_than_its_budget(self):
        self.loads.start(self.load())
        time.sleep(0.3)
        self.assertEqual(self.loads.write(1, self.write), 5 * SHAPE.row_bytes)
        self.assertEqual(self.until_finished(budget=1), ({"r"}, set()))
        self.check()

    def test_a_worker_with_nothing_to_compute_waits_for_pieces(self):
        self.prefill.gate = threading.Event()
        self.addCleanup(self.prefill.gate.set)
        self.loads.start(self.load())
        began = time.monotonic()
        self.assertEqual(self.loads.write_for(0.1, 1 << 20, self.write), 0)
        self.assertGreaterEqual(time.monotonic() - began, 0.1)
        threading.Timer(0.1, self.prefill.gate.set).start()
        # All in one call, which ends with the load and not with the time.
        self.assertEqual(self.loads.write_for(60, 1 << 20, self.write), SHAPE.layers * 20 * SHAPE.row_bytes)
        self.assertLess(time.monotonic() - began, 50)
        self.assertEqual(self.loads.take_finished(), ({"r"}, set()))
        self.check()
        self.assertEqual(self.loads.write_for(60, 1 << 20, self.write), 0)
        self.loads.start(self.load())
        self.assertEqual(self.loads.write_for(60, 1, self.write), 5 * SHAPE.row_bytes)

    def test_a_worker_that_waits_is_told_of_a_failure(self):
        self.prefill.fails_at_layer = 2
        self.loads.start(self.load())
        self.loads.write_for(60, 1 << 20, self.write)
        with self.assertLogs("vllm.tributary", "WARNING"):
            self.assertEqual(self.loads.take_finished(), ({"r"}, {"r"}))

    def test_memory_of_pieces_is_used_again_where_it_is_large_enough(self):
        memory, write = [], self.write

        def noting(load, piece):
            memory.append(piece.data.obj)
            write(load, piece)

        self.write = noting
        for rows in (3, 20, 20):
            self.loads.start(self.load(rows=rows))
            self.assertEqual(self.until_finished(), ({"r"}, set()))
        self.check()
        self.assertEqual(len(memory), SHAPE.layers * (1 + 4 + 4))
        self.assertLessEqual(len({id(each) for each in memory}), SHAPE.layers + 2 * PIECES_HELD)

    def test_loads_do_not_wait_for_each_other(self):
        slow = self.stand_in.add(Prefill(IDS, SHAPE, random_kv))
        slow.gate = threading.Event()
        self.addCleanup(slow.gate.set)
        self.loads.start(self.load("slow", prefill=slow))
        self.loads.start(self.load())
        self.assertEqual(self.until_finished(), ({"r"}, set()))
        slow.gate.set()
        self.assertEqual(self.until_finished(), ({"slow"}, set()))

    def failing(self, pattern):
        with self.assertLogs("vllm.tributary", "WARNING") as logs:
            self.loads.start(self.load())
            self.assertEqual(self.until_finished(), ({"r"}, {"r"}))
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], pattern)
        self.assertEqual(self.loads.take_finished(), (set(), set()))

    def test_damage_fails_the_load_in_any_place(self):
        for layer, row in ((0, 0), (1, 10), (2, 19)):
            with self.subTest(layer=layer, row=row):
                self.prefill.damage = (layer, row)
                self.failing(f"layer {layer}.*damaged")

    def test_a_failed_prefill_fails_the_load(self):
        self.prefill.fails_at_layer = 2
        self.failing("layer 2.*502.*a rank has died")

    def test_an_expired_prefill_fails_the_load(self):
        self.stand_in.drop(self.prefill)
        self.failing("layer 0.*404")

    def test_a_server_that_is_gone_fails_the_load(self):
        self.stand_in.__exit__()
        self.stand_in.url = "http://127.0.0.1:1"
        self.loads = self.make()
        self.failing("layer 0.*refused")

    def test_a_late_prefill_fails_the_load(self):
        self.prefill.gate = threading.Event()
        self.addCleanup(self.prefill.gate.set)
        self.loads = self.make(load_seconds=0.3)
        self.failing("not there in time")

    def test_an_error_of_a_write_fails_the_load(self):
        def broken(load, piece):
            raise RuntimeError("no such slot")

        self.loads.start(self.load())
        time.sleep(0.3)
        with self.assertLogs("vllm.tributary", "WARNING") as logs:
            self.loads.write(1 << 20, broken)
            self.assertEqual(self.loads.take_finished(), ({"r"}, {"r"}))
        self.assertRegex(logs.output[0], "no such slot")

    def test_a_stopped_load_is_reported_once_and_written_no_more(self):
        self.prefill.gate = threading.Event()
        self.loads.start(self.load())
        threads = self.loads._loading["r"].threads
        time.sleep(0.1)
        self.loads.stop({"r", "unknown"})
        self.assertEqual(self.loads.take_finished(), ({"r"}, set()))
        self.prefill.gate.set()
        for thread in threads:
            thread.join(5)
            self.assertFalse(thread.is_alive())
        self.loads.write(1 << 20, self.write)
        self.assertEqual(self.cache, {})
        self.assertEqual(self.loads.take_finished(), (set(), set()))

    def test_stopping_wakes_a_thread_that_waits_for_room(self):
        self.loads.start(self.load())
        threads = self.loads._loading["r"].threads
        time.sleep(0.3)
        self.loads.stop({"r"})
        for thread in threads:
            thread.join(5)
            self.assertFalse(thread.is_alive())


if __name__ == "__main__":
    unittest.main()
