// Asio's own code, once (ASIO_SEPARATE_COMPILATION). A header of the standard library comes first: Asio asks what the
// library can do by macros that such a header defines, and every file must get the same answers.
#include <cstddef>

#include <asio/impl/src.hpp>
