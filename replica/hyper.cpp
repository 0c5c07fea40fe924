#include "replica/hyper.h"

namespace gradtap::replica {

std::string_view optimizer_class_name(OptimizerClass type) {
  switch (type) {
    case OptimizerClass::kSgd:
      return "SGD";
    case OptimizerClass::kAdam:
      return "Adam";
    case OptimizerClass::kAdamW:
      return "AdamW";
  }
  return "SGD";
}

std::optional<OptimizerClass> optimizer_class_of(std::string_view name) {
  for (const OptimizerClass type : {OptimizerClass::kSgd, OptimizerClass::kAdam, OptimizerClass::kAdamW})
    if (name == optimizer_class_name(type)) return type;
  return std::nullopt;
}

}  // namespace gradtap::replica
