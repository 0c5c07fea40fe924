// The files of the live page (actors/page/), as they were when the node was built.
//
// Ownership: static storage, never freed. Threads: any, read only. Invariants: the bytes are those of the files, one
// for one (cmake/embed_page.cmake); the page names no resource of another host (tests/floors). Failure: none.
#pragma once

#include <span>
#include <string_view>

namespace gradtap::actors {

struct PageFile {
  std::string_view path;  // of the request: "/" or "/page.css"
  std::string_view type;  // Content-Type
  std::string_view bytes;
};

[[nodiscard]] std::span<const PageFile> page_files();

}  // namespace gradtap::actors
