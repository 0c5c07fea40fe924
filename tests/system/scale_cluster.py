"""A cluster whose members change: the first nodes stand in the cluster file, the others are added by command.

Nodes given in `taps` have a mirror port; the others get every byte over the node link.
"""
import json
import os
import subprocess

import harness
import rig
from cluster import DOWN_AFTER_MS, SHARD, Cluster, security_line
from harness import require

DOMAIN = "rack-%d"


class ScaleCluster(Cluster):
    def __init__(self, r, folder, first=2, taps=None, **options):
        self.first = first
        self.taps = set(range(first)) if taps is None else set(taps)
        super().__init__(r, folder, **options)
        for node in self.nodes:
            if node.number not in self.taps:
                with open(node.config) as f:
                    text = f.read()
                begin, end = text.index("[tap]"), text.index("[replica]")
                with open(node.config, "w") as f:
                    f.write(text[:begin] + '[tap]\nkind = "none"\n\n' + text[end:])

    def _write_cluster_file(self, down_after_ms, degraded_durable, security):
        text = security_line(security) + 'replicas = 2\ndegraded_durable = %s\nheartbeat_ms = 500\ndown_after_ms = %d\n' % (
            "true" if degraded_durable else "false", down_after_ms)
        for k in range(self.first):
            address = rig.node_address(k)
            text += '\n[[member]]\nname = "tap%d"\nlink = "%s:7800"\nhttp = "http://%s:7700"\ndomain = "%s"\n' % (
                k, address, address, DOMAIN % k)
        with open(os.path.join(self.folder, "cluster.toml"), "w") as f:
            f.write(text)

    def start(self, kill_points=None):
        for node in self.nodes[:self.first]:
            node.start(wait=False)
        for node in self.nodes[:self.first]:
            node.wait_ready()
        harness.wait_until("the nodes to see one another", 30, lambda: all(
            m["state"] == "up" for node in self.nodes[:self.first] for m in self.members(node).values()))
        return self

    def require_alive(self, but=()):
        """Of the nodes that were started and not ended by a test."""
        for node in self.nodes:
            if node.child is not None and node.number not in but:
                require(node.alive(), "%s ended with code %s: %s" % (node.name, node.child.poll(), node.last_words()))

    # ---- members

    def members(self, node=None):
        """{name: what the node says of the member}."""
        answer = (node or self.live()[0]).get("/v1/nodes", quiet=True)
        return {m["name"]: m for m in answer["members"]} if answer else {"?": {"state": "no answer"}}

    def unsettled(self):
        """What the nodes say of shards that are not where they belong."""
        found = []
        for node in self.live():
            answer = node.get("/v1/jobs/%s/placement" % self.job, quiet=True) or {"shards": []}
            found += ["%s: shard %s %s" % (node.name, s["shard"], [
                (h["node"], h["role"], h["live"], h["version"], h["durable"], h.get("waits_for")) for h in s["holders"]])
                for s in answer["shards"] if any(h["role"] != "in_sync" for h in s["holders"])]
            found += ["%s: %s" % (node.name, {n: (m["membership"], m["state"])
                                              for n, m in self.members(node).items() if "membership" in m})]
        return "; ".join(found)

    def nodes_command(self, action, name, *arguments, through=None, code=0, seconds=90, wait=True):
        """`gradtap nodes`, through a live node's gateway; its output. wait=False: the running process."""
        node = through or next(n for n in self.live() if n.name != name)
        command = self.rig.command(node.monitor, os.path.join(harness.BIN, "gradtap"), "nodes", action,
                                   *([name] if name else []), *[str(a) for a in arguments])
        if not wait:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise harness.Failed("gradtap nodes %s %s did not end in %d s: %s; %s; %s" % (
                action, name, seconds, (error.stdout or b"").decode(errors="replace").strip()[-400:], self.unsettled(),
                self.describe()))
        output = done.stdout + done.stderr
        if code is not None:
            require(done.returncode == code, "gradtap nodes %s %s: exit code %d: %s; %s"
                    % (action, name, done.returncode, output.strip()[-600:], self.describe()))
        return output

    def facts(self, k):
        address = rig.node_address(k)
        return ["--link", "%s:7800" % address, "--http", "http://%s:7700" % address, "--domain", DOMAIN % k]

    def add(self, k, wait=True, start=True, **options):
        """Starts node k, which waits, and makes it a member."""
        node = self.nodes[k]
        if start and not node.alive():
            node.start(wait=False)
        return self.nodes_command("add", node.name, *self.facts(k), wait=wait, **options)

    def drain(self, k, wait=True, **options):
        return self.nodes_command("drain", self.nodes[k].name, wait=wait, **options)

    def drain_check(self, k, **options):
        """(exit code 0: safe, the answer)."""
        node = options.pop("through", None) or next(n for n in self.live() if n.number != k)
        command = self.rig.command(node.monitor, os.path.join(harness.BIN, "gradtap"), "nodes", "drain",
                                   self.nodes[k].name, "--check", "--json")
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        require(done.returncode in (0, 1), "drain --check: %s" % (done.stderr or done.stdout))
        answer = json.loads(done.stdout)
        require(answer["check"]["safe"] == (done.returncode == 0), "drain --check contradicts itself: %s" % answer)
        return answer["check"]

    def placement(self, node=None):
        return (node or self.live()[0]).get("/v1/jobs/%s/placement" % self.job)

    def holders(self):
        """{shard: {node: role}}."""
        return {s["shard"]: {h["node"]: h["role"] for h in s["holders"]} for s in self.placement()["shards"]}

    def print_map(self, say):
        """A line a node: the shards that it holds, with a mark for those that come (+) and go (-)."""
        marks = {"in_sync": "", "syncing": "+", "releasing": "-"}
        held = {}
        for shard, nodes in sorted(self.holders().items()):
            for node, role in nodes.items():
                held.setdefault(node, []).append("%d%s" % (shard, marks[role]))
        for name, member in sorted(self.members().items()):
            say("   %-6s %-9s %-8s shards %s" % (name, member["membership"], member["state"],
                                                 " ".join(held.get(name, [])) or "-"))

    def require_balanced(self):
        """Every member that is in holds as many shards as the others, within one; two owners a shard, all in sync."""
        counts = {name: 0 for name, m in self.members().items() if m["membership"] == "in"}
        for shard, nodes in self.holders().items():
            require(len(nodes) == 2 and set(nodes.values()) == {"in_sync"}, "shard %s: %s" % (shard, nodes))
            for node in nodes:
                require(node in counts, "shard %s is held by %s, which is not in" % (shard, node))
                counts[node] += 1
        require(max(counts.values()) - min(counts.values()) <= 1, "the map is not balanced: %s" % counts)
        return counts

    def wait_balanced(self, seconds=60):
        last = []

        def there():
            try:
                self.require_balanced()
                return True
            except harness.Failed as error:
                last[:] = [str(error)]
                return False
        try:
            harness.wait_until("a balanced map", seconds, there, pause=0.3)
        except harness.Failed as error:
            raise harness.Failed("%s: %s" % (error, last))
        return self.require_balanced()
