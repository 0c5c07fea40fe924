// Asio's own code, once (ASIO_SEPARATE_COMPILATION).
#include <asio/impl/src.hpp>
