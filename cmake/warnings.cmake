# One interface target that every target of the project links: language rules, warnings and sanitizers.
add_library(gradtap_options INTERFACE)
target_include_directories(gradtap_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(gradtap_options INTERFACE -Wall -Wextra -Wpedantic -Werror)
# Bit-exact arithmetic: the compiler must never contract a*b+c on its own (replica/README.md).
target_compile_options(gradtap_options INTERFACE -ffp-contract=off)
if(GRADTAP_SANITIZE)
  # CAF's headers form null references on purpose; its own documentation excludes this check.
  target_compile_options(gradtap_options INTERFACE -fsanitize=address,undefined -fno-sanitize=null
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(gradtap_options INTERFACE -fsanitize=address,undefined)
endif()
if(GRADTAP_TSAN)
  target_compile_options(gradtap_options INTERFACE -fsanitize=thread)
  target_link_options(gradtap_options INTERFACE -fsanitize=thread)
endif()
if(GRADTAP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "the fuzz targets need clang: cmake --preset fuzz")
  endif()
  target_compile_options(gradtap_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined
                         -fno-sanitize-recover=all -g)
  # GCC 12's std::stable_sort calls what C++17 deprecates.
  target_compile_options(gradtap_options INTERFACE -Wno-deprecated-declarations)
  target_link_options(gradtap_options INTERFACE -fsanitize=address,undefined)
endif()

# gradtap_actor_headers(TARGET): what costs most to read in every file that knows actors.
function(gradtap_actor_headers target)
  if(GRADTAP_PCH)
    target_precompile_headers(${target} PRIVATE <caf/all.hpp> <fmt/format.h> <nlohmann/json.hpp>)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endfunction()

# gradtap_library(NAME [PRIVATE_LIBS...]): a floor of the house from all *.cpp files of its folder.
function(gradtap_library name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC gradtap_options ${ARGN})
endfunction()
