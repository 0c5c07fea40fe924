# Headers of the frames between nodes (docs/formats.md, Node link). Fields are only added, never renumbered, never reused.
@0xb9e2c41f7d03a865;
using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gradtap::schema::wire");

struct LinkHello {
  name @0 :Text;               # who connects
  peer @1 :Text;               # whom it means to reach
  cluster @2 :Data;            # 32 bytes: digest of the members and replicas of the cluster file
  kind @3 :UInt16;             # 1 control, 2 bulk
  tunnel @4 :UInt64;           # control: the sender's number for it
  renews @5 :Bool;             # control: takes the place of an older connection of the same number
}

struct LinkFault {             # an error of the other side
  code @0 :UInt16;             # 0: none
  what @1 :Text;
  where @2 :Text;
  expected @3 :Text;
  actual @4 :Text;
  remedy @5 :Text;
}

struct LinkWelcome {           # answer to a hello
  name @0 :Text;               # who answers
  fault @1 :LinkFault;
}

struct LinkRequest {
  kind @0 :UInt16;
  job @1 :Data;                # 16 bytes
  lineage @2 :UInt32;
  shard @3 :UInt32;
  step @4 :UInt64;
  argument @5 :UInt64;
  text @6 :Text;
  firstChunk @7 :UInt64;       # the answer begins here
  bodyBytes @8 :UInt64;        # in this frame's payload and in body frames after it
  credits @9 :UInt32;          # chunks that may be sent before the first credit frame
}

struct LinkAnswer {
  fault @0 :LinkFault;         # with one, nothing follows
  meta @1 :Text;
  identity @2 :Text;           # two answers of equal identity have equal chunks; empty: never equal
  chunks @3 :UInt64;           # of the whole answer
}

struct LinkChunk { index @0 :UInt64; }
struct LinkCredit { chunks @0 :UInt32; }
struct LinkEnd { fault @0 :LinkFault; }
