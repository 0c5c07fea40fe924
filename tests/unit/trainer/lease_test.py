"""A restore holds its point: taken before anything is read, kept, given back; and what happens where it cannot be had."""

import os
import threading

import refused_restore_test
import single
from points import PointServer
from refused_restore_test import Job, RestoreCase
from single import gradtap

LONGEST_S = 30


def said(text):
    return [line for line in single.lines if text in line]


class Gateways(RestoreCase):
    def setUp(self):
        del single.lines[:]

    def when_read(self, server, condition):
        """The state is answered only once that many calls about leases were made."""
        plain, met = server.answer, []

        def answer(path):
            if "/state" in path:
                end = threading.Event()
                for _ in range(LONGEST_S * 20):
                    if condition():
                        met.append(True)
                        break
                    end.wait(0.05)
            return plain(path)

        server.answer = answer
        return met

    def test_taken_before_reading_and_released_after(self):
        with PointServer([self.point(3)]) as server:
            seen = []
            self.when_read(server, lambda: seen.append(list(server.held.values())) or True)
            self.assertEqual(Job(2).restore(server.endpoint).step, 3)
        self.assertEqual([[h[:2] for h in held] for held in seen], [[(1, 3)]])
        self.assertIn("process %d" % os.getpid(), seen[0][0][2])
        self.assertEqual([m for m, _ in server.lease_calls], ["POST", "DELETE"])
        self.assertEqual((server.held, server.unheld), ({}, []))
        self.assertEqual(said("lease"), [])

    def test_renewed_while_it_reads(self):
        with PointServer([self.point(3)]) as server:
            server.renew_s = 0.1
            met = self.when_read(server, lambda: len(server.lease_calls) >= 3)
            self.assertEqual(Job(2).restore(server.endpoint).step, 3)
        self.assertTrue(met)
        taken, renewed = server.lease_calls[0], server.lease_calls[1]
        self.assertEqual(renewed, ("POST", taken[1] + "/" + "%032x" % 1))
        self.assertEqual(server.lease_calls[-1], ("DELETE", renewed[1]))
        self.assertEqual(server.held, {})

    def test_another_one_is_taken_where_the_node_forgot_it(self):
        with PointServer([self.point(3)]) as server:
            server.renew_s = 0.1

            def forgetful(method, names):
                if len(names) == 8 and names[7] == "%032x" % 1:
                    server.held.clear()

            server.lease_with = forgetful
            met = self.when_read(server, lambda: len(server.lease_calls) >= 4)
            self.assertEqual(Job(2).restore(server.endpoint).step, 3)
        self.assertTrue(met)
        self.assertEqual([m for m, _ in server.lease_calls[:3]], ["POST"] * 3)
        self.assertEqual(server.lease_calls[0], server.lease_calls[2])
        self.assertEqual(server.lease_calls[-1], ("DELETE", server.lease_calls[2][1] + "/" + "%032x" % 3))
        self.assertEqual((server.held, said("lease")), ({}, []))

    def test_another_gateway_where_the_first_one_dies_or_has_no_room(self):
        dead = "http://127.0.0.1:%d" % single.jobs.free_port()
        with PointServer([self.point(3)]) as full, PointServer([self.point(3)]) as server:
            full.lease_with = lambda method, names: (429, {"error": {"name": "LIMIT_REACHED", "what": "64 leases"}})
            restored = Job(2).restore([full.endpoint, dead, server.endpoint])
        self.assertEqual(restored.step, 3)
        self.assertEqual([m for m, _ in server.lease_calls], ["POST", "DELETE"])
        self.assertEqual((server.held, said("lease")), ({}, []))

    def test_without_a_lease_the_restore_goes_on_and_says_so(self):
        for answer in ((404, {"error": {"name": "REQUEST_MALFORMED", "what": "there is nothing at this path"}}),
                       (503, {"error": {"name": "OBJECT_STORE", "what": "read-only"}}), (200, {"lease": "../x"}),
                       (200, {"lease": 7}), (200, []), (200, b"no JSON"), (429, {}), (501, b"")):
            del single.lines[:]
            with PointServer([self.point(3)]) as server:
                server.lease_with = lambda method, names: answer
                self.assertEqual(Job(2).restore(server.endpoint).step, 3)
            self.assertEqual(len(said("without a lease")), 1, answer)
            self.assertLessEqual(len(server.lease_calls), 2)

    def test_renewals_and_a_release_that_fail_are_told_once(self):
        with PointServer([self.point(3)]) as server:
            server.renew_s = 0.1
            server.lease_with = lambda method, names: (503, {"error": {"name": "OBJECT_STORE", "what": "bad disk"}}) \
                if len(names) == 8 else None
            met = self.when_read(server, lambda: len(server.lease_calls) >= 4)
            self.assertEqual(Job(2).restore(server.endpoint).step, 3)
        self.assertTrue(met)
        self.assertEqual(len(said("lease")), 1)
        self.assertIn("not renewed", said("bad disk")[0])

    def test_a_failed_restore_gives_it_back(self):
        point = self.point(3)
        point.state = self.flipped(point.state, len(point.state) - 1)
        with PointServer([point]) as server:
            with self.assertRaises(gradtap.RestoreError):
                Job(2).restore(server.endpoint)
        self.assertEqual([m for m, _ in server.lease_calls], ["POST", "DELETE"])
        self.assertEqual(server.held, {})

    def test_a_point_that_vanishes_before_it_is_held(self):
        with PointServer([self.point(2)]) as server:
            newer = self.point(4)

            def vanish(method, names):
                if int(names[5]) == 2:
                    server.points = {(1, 4): newer}

            server.lease_with = vanish
            restored = Job(2).restore(server.endpoint)
        self.assertEqual(restored.step, 4)
        self.assertEqual([p[:2] for p in restored.passed_over], [(1, 2)])
        self.assertIn("before it could be held", restored.passed_over[0][2])
        self.assertEqual((server.held, server.unheld), ({}, []))

    def test_a_point_that_vanishes_while_it_is_read(self):
        # Deleted between the list of leases that the deleting node read and its removal: the newer one is taken.
        with PointServer([self.point(2)]) as server:
            plain, newer = server.answer, self.point(4)

            def answer(path):
                if path.endswith("/points/1/2"):
                    server.points = {(1, 4): newer}
                return plain(path)

            server.answer = answer
            self.assertEqual(Job(2).restore(server.endpoint).step, 4)

    def test_points_that_always_vanish(self):
        with PointServer([self.point(1)]) as server:
            def vanish(method, names):
                step = int(names[5])
                server.points = {(1, step % 4 + 1): self.point(step % 4 + 1, lineage=1)}

            server.lease_with = vanish
            with self.assertRaises(gradtap.RestoreError) as caught:
                Job(2).restore(server.endpoint, or_fresh=True)
        self.assertEqual(caught.exception.name, "NO_VALID_POINT")
        self.assertEqual(len([c for c in server.calls if c.endswith("/points")]), 4)
        with PointServer([self.point(1)]) as server:
            server.lease_with = lambda method, names: server.points.clear()
            with self.assertRaises(gradtap.RestoreError) as caught:
                Job(2).restore(server.endpoint, step=1, or_fresh=True)
        self.assertEqual(caught.exception.name, "NO_VALID_POINT")


class Program(refused_restore_test.Directory):
    test_through_the_program = test_no_program_or_no_directory = None

    def setUp(self):
        del single.lines[:]

    def calls(self, folder):
        with open(os.path.join(folder, "calls")) as f:
            return [line.strip() for line in f]

    def write(self, folder, name, text):
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)

    def test_held_while_the_other_commands_read(self):
        folder = self.folder([self.point(3)])
        self.assertEqual(Job(2).restore(folder).step, 3)
        calls = self.calls(folder)
        kinds = [" ".join(c.split()[:2]) if c.startswith("points") else c.split()[0] for c in calls]
        self.assertEqual(kinds, ["points list", "points hold", "held", "points show", "export", "points side", "released"])
        self.assertEqual(said("lease"), [])

    def test_a_directory_that_cannot_be_written_to(self):
        folder = self.folder([self.point(3)])
        self.write(folder, "refuse.1.3", "E422 OBJECT_STORE: mkdir failed: Read-only file system\n")
        self.assertEqual(Job(2).restore(folder).step, 3)
        self.assertEqual(len(said("without a lease")), 1)
        self.assertIn("Read-only file system", said("without a lease")[0])

    def test_a_point_that_is_gone(self):
        folder = self.folder([self.point(3), self.point(2)])
        self.write(folder, "refuse.1.3", "E425 POINT_NONE: the recovery point is not there\n")
        restored = Job(2).restore(folder)
        self.assertEqual(restored.step, 2)
        self.assertIn("before it could be held", restored.passed_over[0][2])

    def test_a_program_that_ends_badly_does_not_fail_the_restore(self):
        folder = self.folder([self.point(3)])
        self.write(folder, "hold_ends", "1")
        self.assertEqual(Job(2).restore(folder).step, 3)
        self.assertEqual(len(said("ended with 1")), 1)


if __name__ == "__main__":
    import unittest

    unittest.main()
