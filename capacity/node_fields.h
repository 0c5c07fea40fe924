// The numbers of a NodeShape by their names in JSON, for the sources that walk all of them. Constant data.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "capacity/node_shape.h"

namespace gradtap::capacity {

// Of a field that is a cost and no rate, the largest is the weakest.
struct NodeField {
  std::string_view name;
  double NodeShape::* at;
  bool cost = false;
};

inline constexpr std::array<NodeField, 18> kNodeFields = {{
    {"memory_bytes", &NodeShape::memory_bytes},
    {"disk_bytes", &NodeShape::disk_bytes},
    {"cores", &NodeShape::cores},
    {"receive_queues", &NodeShape::receive_queues},
    {"worker_threads", &NodeShape::worker_threads},
    {"window_bytes_max", &NodeShape::window_bytes_max},
    {"hold_bytes_max", &NodeShape::hold_bytes_max},
    {"mirror_ports", &NodeShape::mirror_ports},
    {"mirror_port_bits_per_s", &NodeShape::mirror_port_bits_per_s},
    {"link_bits_per_s", &NodeShape::link_bits_per_s},
    {"memory_bytes_per_s", &NodeShape::memory_bytes_per_s},
    {"disk_write_bytes_per_s", &NodeShape::disk_write_bytes_per_s},
    {"object_write_bytes_per_s", &NodeShape::object_write_bytes_per_s},
    {"receive_s_per_frame", &NodeShape::receive_s_per_frame, true},
    {"receive_s_per_byte", &NodeShape::receive_s_per_byte, true},
    {"place_bytes_per_s", &NodeShape::place_bytes_per_s},
    {"apply_parameters_per_s", &NodeShape::apply_parameters_per_s},
    {"digest_bytes_per_s", &NodeShape::digest_bytes_per_s},
}};

}  // namespace gradtap::capacity
