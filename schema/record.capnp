# What lies on disk in the side and mark families (docs/formats.md). Every record is read for ever: fields are only
# added, never renumbered, never reused.
@0xd3b5f0c1a7e94b26;
using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gradtap::schema::wire");

struct Lineage {
  job @0 :Data;                # 16 bytes
  jobName @1 :Text;
  lineage @2 :UInt32;
  runNonce @3 :Text;           # 32 hexadecimal digits
  parentLineage @4 :UInt32;    # 0: none
  parentStep @5 :UInt64;
  baseStep @6 :UInt64;
  world @7 :UInt32;
  group @8 :UInt32;
  sequence @9 :UInt64;         # group sequence number at attach
  schemaJson @10 :Data;        # rank 0's attach message as received
  optimizerClass @11 :Text;
  kinds @12 :List(Text);       # per-element optimizer state, in the order of the shard digest
  recipeId @13 :Text;          # empty until the numerics probe has named it
  transforms @14 :List(Text);  # as planned at attach
  shardElements @15 :UInt64;
  shardCount @16 :UInt32;
  endpoints @17 :List(Text);   # rank order
  createdWallMs @18 :UInt64;
  layoutId @19 :Data;          # layout of the first step: 32 bytes, zero when not known
}

struct Step {
  lineage @0 :UInt32;
  step @1 :UInt64;
  rank @2 :UInt32;
  seq @3 :UInt64;
  layoutId @4 :Data;           # 32 bytes
  intervalFrom @5 :UInt64;
  intervalTo @6 :UInt64;
  verdict @7 :Verdict;
  json @8 :Data;               # the message as received: the authority
}

enum Verdict { applied @0; skipped @1; ambiguous @2; }

struct Mark {
  job @0 :Data;                # 16 bytes
  lineage @1 :UInt32;
  shard @2 :UInt32;
  version @3 :UInt64;          # V: the durable step
  full @4 :UInt64;             # F: newest full version
  logFrom @5 :UInt64;          # logs logFrom..logTo are here, without a hole; logFrom = logTo + 1: none
  logTo @6 :UInt64;            # L
  schemaId @7 :Data;           # 32 bytes
  epoch @8 :UInt64;
  stateDigest @9 :Data;        # 32 bytes, shard digest at V
}
