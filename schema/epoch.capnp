# Who belongs to the cluster and who owns which shard, version by version (docs/formats.md, Epoch record). Every record
# is read for ever: fields are only added, never renumbered, never reused.
@0xd86b2f90c41ae537;
using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gradtap::schema::wire");

struct EpochMember {
  name @0 :Text;               # unique in the list
  link @1 :Text;               # host:port of the node link
  http @2 :Text;               # URL of the side channel
  domain @3 :Text;             # members that may die together share it
  capacity @4 :UInt32;         # 1..65535
  state @5 :UInt16;            # 0 in, 1 draining, 2 out
  sinceEpoch @6 :UInt64;       # in which it came, came back, or was replaced
}

struct Epoch {
  number @0 :UInt64;           # 1, 2, 3, ...
  previous @1 :Data;           # 32 bytes: SHA-256 of the epoch before as stored, zero for epoch 1
  replicas @2 :UInt32;         # owners that a shard should have, 1..16
  members @3 :List(EpochMember);     # a member keeps its place for ever: it is its index
  owners @4 :List(List(UInt16));     # by shard: indices of members, primary first
  proposer @5 :Text;
  cause @6 :Text;
  createdWallMs @7 :UInt64;
}
