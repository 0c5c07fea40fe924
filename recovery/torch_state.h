// TorchState: the state of a step as a torch file: {"model", "optimizer", "gradtap"} (docs/formats.md).
//
// Purpose: what a training script without gradtap loads: model.load_state_dict(file["model"]) and
// optimizer.load_state_dict(file["optimizer"]). Tensors keep their memory order as strides. One thread. Failure
// behaviour: the error of the source or the sink.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/error.h"
#include "recovery/state_tensors.h"
#include "replica/safetensors.h"

namespace gradtap::recovery {

// Rank 0's blobs by name ("optimizer", "buffers", "frozen"), as the trainer encoded them; may be empty. With them the
// file has the groups as the *next* step uses them, and the tensors that no gradient moves. What cannot be taken over
// is listed in the file, under gradtap.left_out.
using SideBlobs = std::map<std::string, std::vector<std::uint8_t>, std::less<>>;

[[nodiscard]] Status write_torch_state(StateTensors& tensors, const StateFacts& facts, const SideBlobs& side,
                                       bool optimizer, const replica::ByteSink& sink);

}  // namespace gradtap::recovery
