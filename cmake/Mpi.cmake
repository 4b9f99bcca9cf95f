# Several ranks (src/parallel/mpi): whether it is built (JACKSCREW_MPI), and how. All that is linked with
# MPI is one library, which the program loads when it was started with others.

set(JACKSCREW_MPI AUTO CACHE STRING "Build for MPI: AUTO (where it is found), ON or OFF")
set_property(CACHE JACKSCREW_MPI PROPERTY STRINGS AUTO ON OFF)

# Adds the target jackscrew_mpi, libjackscrew_mpi.so, where there is an MPI.
function(jackscrew_add_mpi)
  if(JACKSCREW_MPI STREQUAL "OFF")
    return()
  endif()
  # MPI's interface for C, which is looked for with a compiler for C.
  enable_language(C)
  find_package(MPI QUIET COMPONENTS C)
  if(NOT MPI_C_FOUND)
    if(JACKSCREW_MPI STREQUAL "ON")
      message(FATAL_ERROR "JACKSCREW_MPI is ON, but no MPI is found (script/setup --mpi)")
    endif()
    message(STATUS "MPI: not built, since none is found (script/setup --mpi)")
    return()
  endif()
  message(STATUS "MPI: ${MPI_C_LIBRARIES}")
  add_library(jackscrew_mpi MODULE ${CMAKE_SOURCE_DIR}/src/parallel/mpi/mpi_calls.cc)
  target_link_libraries(jackscrew_mpi PRIVATE jackscrew_options MPI::MPI_C)
  set_target_properties(jackscrew_mpi PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
    CXX_VISIBILITY_PRESET hidden
    INSTALL_RPATH "")  # not the build tree's
endfunction()
