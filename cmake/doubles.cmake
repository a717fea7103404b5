# lily._test_doubles: devices that stand in for others in tests. Builds from source make it; release wheels do not.
option(LILY_TEST_DOUBLES "Build the module with the devices of the tests" ON)
if(LILY_TEST_DOUBLES)
  file(GLOB double_sources CONFIGURE_DEPENDS tests/doubles/*.cpp)
  nanobind_add_module(_test_doubles STABLE_ABI NB_STATIC NB_DOMAIN lily NB_SUPPRESS_WARNINGS ${double_sources})
  target_include_directories(_test_doubles PRIVATE tests/doubles)
  target_link_libraries(_test_doubles PRIVATE lily_engine lily_warnings)
  install(TARGETS _test_doubles LIBRARY DESTINATION lily)
endif()
