// PickleWriter: builds a pickle of plain Python values and torch tensors, for torch files.
//
// Purpose: exactly what torch.load needs, also with weights_only: protocol 2, and no names but
// torch._utils._rebuild_tensor_v2, torch's storage classes and collections.OrderedDict. The caller keeps begin and end
// in pairs, and gives keys and values of a dict in turn. Not thread-safe; never fails.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradtap::recovery {

// A view of a storage of the same file.
struct PickledTensor {
  std::uint64_t storage = 0;  // member data/<storage>
  std::uint64_t numel = 0;    // of the storage
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;  // in elements
  std::string_view storage_class = "FloatStorage";
};

class PickleWriter {
 public:
  PickleWriter();
  void begin_dict();
  void begin_ordered_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();
  void text(std::string_view value);  // UTF-8
  void integer(std::uint64_t value);  // below 2^63
  void signed_integer(std::int64_t value);
  void real(double value);
  void boolean(bool value);
  void none();
  void tensor(const PickledTensor& value);
  [[nodiscard]] std::string finish();

 private:
  void global(std::string_view module, std::string_view name);

  std::string out_;
};

}  // namespace gradtap::recovery
