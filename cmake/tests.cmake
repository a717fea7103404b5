# The C++ tests of the kernels: plain programs that exit with 1 and say what failed.
enable_testing()
file(GLOB test_sources CONFIGURE_DEPENDS tests/cpp/test_*.cpp)
foreach(source ${test_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE lily_engine lily_warnings)
  add_test(NAME ${name} COMMAND ${name})
endforeach()
