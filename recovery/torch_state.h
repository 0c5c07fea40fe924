// TorchState: the state of a step as a torch file: {"model", "optimizer", "gradtap"} (docs/formats.md).
//
// Purpose: what a training script without gradtap loads: model.load_state_dict(file["model"]) and
// optimizer.load_state_dict(file["optimizer"]). Tensors keep their memory order as strides. One thread. Failure
// behaviour: the error of the source or the sink.
#pragma once

#include "common/error.h"
#include "recovery/state_tensors.h"
#include "replica/safetensors.h"

namespace gradtap::recovery {

[[nodiscard]] Status write_torch_state(StateTensors& tensors, const StateFacts& facts, bool optimizer,
                                       const replica::ByteSink& sink);

}  // namespace gradtap::recovery
