#include "recovery/torch_file.h"

#include "recovery/zip_stream.h"

namespace gradtap::recovery {

Status write_torch_file(const std::string& pickle, const std::vector<std::uint64_t>& storage_bytes,
                        const StorageWriter& storage, const replica::ByteSink& sink, std::uint64_t zip64_from) {
  ZipStream zip(sink, zip64_from);
  GRADTAP_TRY(zip.add("archive/data.pkl", pickle));
  GRADTAP_TRY(zip.add("archive/byteorder", "little"));
  for (std::size_t i = 0; i < storage_bytes.size(); ++i) {
    GRADTAP_TRY(zip.begin("archive/data/" + std::to_string(i), storage_bytes[i]));
    GRADTAP_TRY(storage(i, [&zip](ByteSpan part) { return zip.write(part); }));
    GRADTAP_TRY(zip.end());
  }
  GRADTAP_TRY(zip.add("archive/version", "3\n"));
  return zip.finish();
}

}  // namespace gradtap::recovery
