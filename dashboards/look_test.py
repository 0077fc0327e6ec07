#!/usr/bin/env python3
"""An empty answer is found, gaps are no zeros, and what is drawn is XML that shows the numbers."""

import http.server
import json
import threading
import unittest
import urllib.parse
import xml.etree.ElementTree

import draw
import look
from panels import dashboards, panels_of, rows_of

SECONDS = 20


class Played(http.server.BaseHTTPRequestHandler):
    """Plays a Prometheus that knows one metric by another name."""

    unknown = "tributary_requests_waiting"
    asked = []

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["query"][0]
        self.asked.append(query)
        values = [[SECONDS + at, "NaN" if at < 5 else str(at)] for at in range(SECONDS)]
        labels = [{"rank": "0", "le": "0.5"}, {"rank": "1", "le": "+Inf"}]
        result = [] if self.unknown in query else [{"metric": one, "values": values} for one in labels]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"status": "success", "data": {"result": result}}).encode())

    def log_message(self, *_):
        pass


class Looks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Played)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.url = f"http://127.0.0.1:{cls.server.server_port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()

    def test_the_one_empty_query_is_named(self):
        _, empty = look.look(self.url, dashboards()["overview"], SECONDS, 2 * SECONDS, 1, 1)
        self.assertEqual([message.split(":")[1].split(",")[1] for message in empty], [" Load"])
        self.assertIn(Played.unknown, empty[0])

    def test_no_variable_is_left(self):
        for board in dashboards().values():
            look.look(self.url, board, SECONDS, 2 * SECONDS, 1, 1)
        self.assertTrue(any("[4s]" in query for query in Played.asked))
        self.assertEqual([query for query in Played.asked if "$" in query], [])

    def test_what_is_no_number_is_no_point(self):
        results, _ = look.look(self.url, dashboards()["overview"], SECONDS, 2 * SECONDS, 1, 1)
        for lines in results.values():
            for line in lines:
                self.assertEqual([at for at, _ in line.points], list(range(5, SECONDS)))

    def test_every_dashboard_is_drawn_as_xml(self):
        for board in dashboards().values():
            results, _ = look.look(self.url, board, SECONDS, 2 * SECONDS, 1, 1)
            results[board["panels"][0]["id"]] = []
            picture = draw.dashboard(board, results, SECONDS, 1)
            shown = "".join(xml.etree.ElementTree.fromstring(picture).itertext())
            self.assertIn("no data", shown)
            for panel in panels_of(board) + rows_of(board):
                self.assertIn(panel["title"], shown)


class Draws(unittest.TestCase):
    def test_values_have_units(self):
        cases = [(0.0042, "s", "4.2 ms"), (3 * 2**20, "Bps", "3 MiB/s"), (0.5, "percentunit", "50 %"), (2.5, "reqps", "2.5/s")]
        for value, unit, shown in [*cases, (0, "s", "0"), (123456, "short", "123,456")]:
            self.assertEqual(draw.words(value, unit), shown)

    def test_axes_end_at_round_numbers(self):
        for most, unit, top in [(0.7, "s", 1), (130, "none", 200), (3 * 2**20, "bytes", 5 * 2**20), (0, "short", 1)]:
            self.assertAlmostEqual(draw.nice(most, unit), top)

    def test_a_gap_divides_a_line(self):
        self.assertEqual(len(draw.pieces([(0, 1.0), (1, 1.0), (5, 1.0), (6, 1.0)], 1)), 2)

    def test_stacked_lines_add_up(self):
        layers = draw.stacked([draw.Line("a", [(0, 1.0), (1, 2.0)]), draw.Line("b", [(1, 3.0)])])
        self.assertEqual(layers[1][0].points, [(1, 5.0)])
        self.assertEqual(layers[1][1], [(1, 2.0)])

    def test_heat_takes_lower_buckets_off(self):
        lines = [draw.Line("", [(0, count)], {"le": bound}) for bound, count in (("0.5", 2.0), ("1", 2.0), ("+Inf", 6.0))]
        panel = {"fieldConfig": {"defaults": {"unit": "s"}}}
        cells = [part for part in draw.heat((0, 0, 100, 100), panel, lines, 10, 1) if part.startswith("<rect")]
        self.assertEqual(len(cells), 2)

    def test_legends_take_labels(self):
        self.assertEqual(look.named("{{method}}, {{ cache }}", {"method": "full", "cache": "cold"}), "full, cold")


if __name__ == "__main__":
    unittest.main()
