# What lies in the object store as records (docs/formats.md, Object store). Every record is read for ever: fields are
# only added, never renumbered, never reused.
@0x9f3a71d05be2c864;
using Cxx = import "/capnp/c++.capnp";
using Record = import "record.capnp";
$Cxx.namespace("gradtap::schema::wire");

struct LineageClaim {
  job @0 :Data;                # 16 bytes
  jobName @1 :Text;
  lineage @2 :UInt32;
  runNonce @3 :Text;           # 32 hexadecimal digits
  parentLineage @4 :UInt32;    # 0: none
  parentStep @5 :UInt64;
  parentRecord @6 :Data;       # 32 bytes: SHA-256 of the parent's point record, zero without one
  baseStep @7 :UInt64;
  node @8 :Text;               # that wrote the claim
  createdWallMs @9 :UInt64;
}

struct ObjectRef {
  key @0 :Text;
  bytes @1 :UInt64;            # as stored, header included
  sha256 @2 :Data;             # 32 bytes, of the stored bytes
}

struct PointShardDigest {
  shard @0 :UInt32;
  digest @1 :Data;             # 32 bytes
}

struct PointRankDigest {
  rank @0 :UInt32;
  digest @1 :Data;             # 32 bytes, of the rank's side state
}

# The same for every publisher of the same step.
struct PointCanonical {
  format @0 :UInt16;
  job @1 :Data;                # 16 bytes
  jobName @2 :Text;
  lineage @3 :UInt32;
  parentLineage @4 :UInt32;    # 0: none
  parentStep @5 :UInt64;
  parentRecord @6 :Data;       # 32 bytes
  step @7 :UInt64;
  stateRoot @8 :Data;          # 32 bytes
  shards @9 :List(PointShardDigest);
  ranks @10 :List(PointRankDigest);
  schemaId @11 :Data;          # 32 bytes
  layoutId @12 :Data;          # 32 bytes: layout of step + 1, zero when not known
  layoutJson @13 :Data;        # its body, empty when not known
  stepMessage @14 :Data;       # 32 bytes: SHA-256 of rank 0's step message (group scalars)
  verdict @15 :Record.Verdict;
  world @16 :UInt32;
  recipeId @17 :Text;
  optimizerClass @18 :Text;
  qualifiedBy @19 :Text;
}

struct StepObject {
  step @0 :UInt64;
  object @1 :ObjectRef;
}

struct PointShardObjects {
  shard @0 :UInt32;
  baseStep @1 :UInt64;
  base @2 :ObjectRef;
  logs @3 :List(StepObject);   # baseStep + 1 .. step, without a hole
}

struct Point {
  canonical @0 :PointCanonical;
  shards @1 :List(PointShardObjects);
  steps @2 :List(StepObject);  # lowest baseStep + 1 .. step, without a hole
  side @3 :ObjectRef;
  meta @4 :ObjectRef;
  previousStep @5 :UInt64;     # of the lineage's previous point; its record is zero without one
  previousRecord @6 :Data;     # 32 bytes
  publisher @7 :Text;
  createdWallMs @8 :UInt64;
  training @9 :UInt64;         # the four numbers when this point was created; published is the step before this one
  verified @10 :UInt64;
  durable @11 :UInt64;
  published @12 :UInt64;
  software @13 :Text;
}

struct SideBlob {
  name @0 :Text;
  bytes @1 :Data;
}

struct SideRank {
  rank @0 :UInt32;
  message @1 :Data;            # that rank's step message as received
  blobs @2 :List(SideBlob);    # ascending names, each once
}

struct SideState {
  lineage @0 :UInt32;
  step @1 :UInt64;
  ranks @2 :List(SideRank);    # ascending, each once
}
