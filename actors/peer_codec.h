// PeerCodec: what the peer actors of two nodes say to each other, as JSON texts (docs/formats.md, Peer messages).
//
// Pure; any thread. What a peer sends is hostile until parsed: sizes, ranges and counts are limited; a text that is not
// exactly one of these is REQUEST_MALFORMED and changes nothing.
#pragma once

#include <string>
#include <string_view>

#include "actors/coordination.h"
#include "common/error.h"
#include "common/ids.h"

namespace gradtap::actors {

// Who a node is. Sent at connect and then once per heartbeat interval.
struct PeerHello {
  std::string node;
  std::string cluster;       // hex, cluster_digest()
  bool ready = false;        // it has every side value that its peers had
  LineageId lineage = 0;     // the newest it knows
  std::string store_id;      // of the object store it sees; empty: none
  std::string presence_key;  // what it wrote there at its start
  std::uint64_t epoch = 0;   // the newest it knows
  bool tap = false;          // it has a mirror port
};

[[nodiscard]] std::string encode_hello(const PeerHello& hello);
[[nodiscard]] Result<PeerHello> decode_hello(std::string_view text);

struct PeerReportText {
  LineageId lineage = 0;
  PeerReport report;
};
[[nodiscard]] std::string encode_report(const PeerReport& report, LineageId lineage);
[[nodiscard]] Result<PeerReportText> decode_report(std::string_view text);

}  // namespace gradtap::actors
