// What each gap reason means and what to do: the words of docs/operations.md (tests/floors/docs_test.py compares).
"use strict";
const REASONS = {
"NONE": {
"means": "nothing is missing.",
"does": "nothing."},
"BASELINE_PENDING": {
"means": "the state of step 0 or the numerics probe is still being uploaded or checked, so there is nothing to apply gradients to.",
"does": "wait; the evidence counts the chunks. If it stays, look at the trainer's output: attach may have passed its deadline, and then training runs untapped and says so."},
"IN_FLIGHT": {
"means": "the bytes or the step message of the step are on their way.",
"does": "nothing, unless it lasts: then the evidence names which of the two is awaited."},
"SCALARS_MISSING": {
"means": "the step message of a step did not come, or the trainer declared it dropped: learning rate, clip coefficient and layout of that step are unknown, however complete the wire is.",
"does": "check the route from the training hosts to the gateway and the client's counters (dropped, queue_bytes). A declared drop is final: attach again with a new run."},
"LAYOUT_UNKNOWN": {
"means": "the step names a layout whose body the node does not have.",
"does": "nothing at first: the node asks for it, and the step is applied from the window when it comes. If it stays, treat it as SCALARS_MISSING."},
"ANCHOR_LOST": {
"means": "the position in a connection is unknown; its bytes are held aside and not placed.",
"does": "nothing: the flow anchors itself at the next header that fits. If it repeats, the mirror loses more than it may: compare frames sent and received at the port."},
"COVERAGE_HOLE": {
"means": "the ports that are mirrored cannot show every final byte: on a ring of N ranks one direction of one link carries N-1 of N parts.",
"does": "mirror the ports that the evidence names, at least the received frames of all ranks, or both directions of one."},
"LOST_DEFINITIVE": {
"means": "frames were lost on every copy, and nobody sends them again; the last valid state stays.",
"does": "find the loss (mirror port too small, ring too short, node descheduled), mirror more ports so that each byte has several copies, and attach again. After a restart of the only node this is expected when the job trained meanwhile. Loss may also be the node's own: gradtap status --json shows for each receive queue dropped_without_credit_segments (raise assembly.credits, assembly.assemblers or assembly.credit_wait_ms) and the frames refused (drops, oversized)."},
"CONFLICT": {
"means": "two final copies of the same bytes differ. One of them is wrong and there is no vote.",
"does": "suspect memory, a network card or a middlebox that rewrites checksums. Keep a capture (gradtap inspect reads it) and do not trust the hosts named until it is understood."},
"WITNESS_MISMATCH": {
"means": "what the optimizer saw is not what was assembled: another transform ran between reduction and optimizer (a clip that was imported by name, a gradient hook), another layout, or another step.",
"does": "use tap.clip_grad_norm_(), or import torch.nn.utils as a module; remove hooks that change gradients. The step is not applied."},
"UNWIRED": {
"means": "the optimizer used gradients that never crossed the network: no synchronised backward in the step, or an unused parameter kept an old gradient.",
"does": "let the last backward of each step run outside no_sync(), and zero gradients between steps."},
"OP_AMBIGUOUS": {
"means": "more than one assignment of collectives to buckets fits, and the sampled bits do not decide; or two optimizer calls lie between two commits.",
"does": "call tap.commit() once for each optimizer step; avoid collectives of exactly a bucket's length inside a step."},
"UNSUPPORTED": {
"means": "recipe, dtype, backend or algorithm is outside of what can be rebuilt bit for bit; the job trains untapped.",
"does": "see the list in the README; change the named thing or go without. set it in the job's environment and start the job again."},
"OVERLOAD_SHED": {
"means": "the node could not keep up and dropped its own work at a bound, not the job's.",
"does": "give it cores of its own, more queues, a longer ring, larger bounds; see the counters that were hit."},
"TAP_DOWN": {
"means": "the mirror delivers nothing, or the interface is down.",
"does": "check the mirror session at the switch, cable and interface; frames cut or larger than the buffer are counted apart and refused."},
"OWNER_DOWN": {
"means": "no node that holds these shards is live, so the replica holds at their version; training goes on and the live taps keep what those owners will need, up to assembly.retain_bytes.",
"does": "start one of the nodes named, soon: beyond that memory the steps are lost and the shard can only go on from a baseline (restart the job's attach)."},
"APPLY_LAG": {
"means": "bytes are complete, the optimizer cannot keep up.",
"does": "give the node more cores or memory bandwidth; smaller shards spread better."},
"TRAINER_SILENT": {
"means": "no message and no frame of the job for some time: it stopped, hangs, or ended without tap.close().",
"does": "look at the job."},
"CLIENT_DISABLED": {
"means": "the client switched itself off after repeated errors of its own; training goes on.",
"does": "read the training log for the one line that says why; report it."},
"FLUSH_LAG": {
"means": "the disk is slower than the steps.",
"does": "a faster disk; a larger full_every_steps writes fewer full versions."},
"LOG_OFF": {
"means": "steps are not logged, only full versions are written.",
"does": "switch the log on, unless it is meant so."},
"STORAGE_FULL": {
"means": "there is no room; the newest valid state is never deleted to make some.",
"does": "make room in data_dir; the node goes on by itself."},
"STORAGE_ERROR": {
"means": "a write or sync failed, or a digest read back differs.",
"does": "check the disk (dmesg). After a digest mismatch the affected versions are not used."},
"REPLICA_SHORT": {
"means": "fewer copies than replicas are in sync: a node is down, or is still catching up after it came back. With degraded_durable durable and published go on with the copies there are.",
"does": "bring the missing node back; until then the loss of one more node stops the shards named (OWNER_DOWN). A node that stays behind: see its own status for the reason, and gradtap shards for fetches_failed and error."},
"SIDE_STATE_MISSING": {
"means": "every shard is durable at the step, but a rank's part of it is not here: it has not committed the step, its message has not arrived, or a blob was dropped or too large on the trainer.",
"does": "nothing if it passes: ranks commit one after another. If it stays for one rank, look at that rank's log (gradtap: ... lines name a blob that was dropped) and at its network path to the nodes."},
"UNKNOWN_STATE": {
"means": "the trainer reaches an object whose state nobody can restore; a point without it would be wrong.",
"does": "pass it in extra=, or give it state_dict and load_state_dict."},
"DIVERGED": {
"means": "two owners of a shard hold different bytes for the same step: a disk or memory error on one of them, or a defect. Nothing more is published; the points before stay.",
"does": "compare gradtap shards of the nodes named; stop the node whose memory or disk logs errors, empty its data directory and start it again: it copies the shard from its co-owner. If neither logs an error keep both data directories and report it."},
"PUBLISH_INTERVAL": {
"means": "no point is due, or none can be written because the node has nowhere to put it.",
"does": "nothing, or set objects.directory to a directory that every node shares."},
"UPLOAD_LAG": {
"means": "the step is durable on its owners and its recovery point is being written, or an owner did not answer and another is asked.",
"does": "nothing if it passes. If it stays, the object store is too slow for one point every publish_interval_steps steps: raise the interval, or give it a faster disk."},
"OBJECT_STORE_ERROR": {
"means": "the last recovery point stays as it is; the next one is tried again after a growing pause.",
"does": "free space, or mend the mount; publishing goes on by itself, no restart is needed."},
"PUBLISH_CONFLICT": {
"means": "a record of this step exists and says something else about the same state. Publishing of this lineage stops.",
"does": "gradtap points verify the point named; see whether two clusters use the same object directory and job name. Restart the job (a new lineage) to publish again."}
};
