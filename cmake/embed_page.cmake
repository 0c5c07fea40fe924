# gradtap_embed_page(TARGET FOLDER FILE...): the files become bytes of the target, see actors/page_files.h. At build time
# this file is run as a script: cmake -D FOLDER=... -D FILES=a,b -D OUT=... -P embed_page.cmake
if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(gradtap_embed_page target folder)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/page_files.cpp)
    list(TRANSFORM ARGN PREPEND ${folder}/ OUTPUT_VARIABLE inputs)
    string(JOIN "," files ${ARGN})
    add_custom_command(
      OUTPUT ${out}
      COMMAND ${CMAKE_COMMAND} -D FOLDER=${folder} -D FILES=${files} -D OUT=${out} -P ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
      DEPENDS ${inputs} ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
      COMMENT "the live page becomes bytes of ${target}"
      VERBATIM)
    target_sources(${target} PRIVATE ${out})
    set_source_files_properties(${out} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  endfunction()
  return()
endif()

set(types_html "text/html; charset=utf-8")
set(types_css "text/css; charset=utf-8")
set(types_js "text/javascript; charset=utf-8")
set(types_svg "image/svg+xml")
string(REPLACE "," ";" FILES "${FILES}")
set(arrays "")
set(entries "")
set(number 0)
foreach(name ${FILES})
  get_filename_component(ending ${name} LAST_EXT)
  string(SUBSTRING "${ending}" 1 -1 ending)
  if(NOT DEFINED types_${ending})
    message(FATAL_ERROR "${name}: no content type is known for .${ending}")
  endif()
  set(path "/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  file(READ ${FOLDER}/${name} bytes HEX)
  if(bytes STREQUAL "")
    message(FATAL_ERROR "${name} is empty")
  endif()
  string(REGEX REPLACE "(................................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${number}[] = {\n${bytes}};\n")
  string(APPEND entries "    {\"${path}\", \"${types_${ending}}\", {kFile${number}, sizeof kFile${number}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "// Made by cmake/embed_page.cmake from actors/page/.
#include \"actors/page_files.h\"

namespace gradtap::actors {

namespace {
${arrays}
constexpr PageFile kFiles[] = {
${entries}};
}  // namespace

std::span<const PageFile> page_files() {
  return kFiles;
}

}  // namespace gradtap::actors
")
