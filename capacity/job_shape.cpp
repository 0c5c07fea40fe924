#include "capacity/job_shape.h"

#include <array>

namespace gradtap::capacity {
namespace {

template <class Value, std::size_t N>
Result<Value> choose(const std::array<std::pair<std::string_view, Value>, N>& table, std::string_view what,
                     std::string_view name) {
  std::string known;
  for (const auto& [word, value] : table) {
    if (word == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  return fail(ErrorCode::kOutOfRange, "unknown " + std::string(what), std::string(what), known,
              std::string(name.substr(0, 64)));
}

// RoCEv2 over IPv4: Ethernet 14, IP 20, UDP 8, BTH 12, ICRC 4, frame check 4. TCP: 14, 20, 20 and 12 of time stamps, 4.
constexpr double kRoceBytes = 62;
constexpr double kTcpHeaders = 52;
constexpr double kEthernetBytes = 18;

struct Frame {
  double payload;
  double frame;
};
constexpr std::array<std::pair<std::string_view, Frame>, 5> kFrames = {{
    {"roce-1024", {1024, 1024 + kRoceBytes}},
    {"roce-2048", {2048, 2048 + kRoceBytes}},
    {"roce-4096", {4096, 4096 + kRoceBytes}},
    {"tcp-1500", {1500 - kTcpHeaders, 1500 + kEthernetBytes}},
    {"tcp-9000", {9000 - kTcpHeaders, 9000 + kEthernetBytes}},
}};
constexpr std::array<std::pair<std::string_view, double>, 8> kEncapsulations = {{{"none", 0},
                                                                                 {"vlan", 4},
                                                                                 {"qinq", 8},
                                                                                 {"erspan1", 38},
                                                                                 {"erspan2", 50},
                                                                                 {"erspan3", 54},
                                                                                 {"gre", 54},
                                                                                 {"vxlan", 50}}};
constexpr std::array<std::pair<std::string_view, double>, 4> kDtypes = {
    {{"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"float64", 8}}};

}  // namespace

Result<FrameShape> frame_shape(std::string_view name) {
  const auto found = choose(kFrames, "frame", name);
  if (!found) return std::unexpected(found.error());
  return FrameShape{std::string(name), found->payload, found->frame};
}

Result<double> encapsulation_bytes(std::string_view name) {
  return choose(kEncapsulations, "encapsulation", name);
}

Result<double> dtype_bytes(std::string_view name) {
  return choose(kDtypes, "dtype", name);
}

}  // namespace gradtap::capacity
