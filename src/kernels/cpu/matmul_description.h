// A oneDNN product before it is made: what it multiplies, and which of oneDNN's implementations
// does. oneDNN 3 has no dnnl::matmul::desc, from which oneDNN 2 makes it.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace jackscrew {

#if DNNL_VERSION_MAJOR < 3
inline dnnl::matmul::primitive_desc matmul_description(const dnnl::engine& engine,
                                                       const dnnl::memory::desc& a,
                                                       const dnnl::memory::desc& b,
                                                       const dnnl::memory::desc& c,
                                                       const dnnl::primitive_attr& attributes) {
  return {dnnl::matmul::desc(a, b, c), attributes, engine};
}
#else
inline dnnl::matmul::primitive_desc matmul_description(const dnnl::engine& engine,
                                                       const dnnl::memory::desc& a,
                                                       const dnnl::memory::desc& b,
                                                       const dnnl::memory::desc& c,
                                                       const dnnl::primitive_attr& attributes) {
  return {engine, a, b, c, attributes};
}
#endif

}  // namespace jackscrew
