# The Metal device. Objective-C++ is needed, and its language enabled, on macOS only; the parts of the device that are
# plain C++ are built, and tested, everywhere. The sources of the kernels are compiled by the system when they are used.
if(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
  set(lily_metal_default ON)
else()
  set(lily_metal_default OFF)
endif()
option(LILY_METAL "Build the Metal device, which runs the kernels on Apple GPUs" ${lily_metal_default})

set(metal_device_dir ${PROJECT_SOURCE_DIR}/src/lily_core/device)
file(GLOB metal_device_sources CONFIGURE_DEPENDS ${metal_device_dir}/metal/*.cpp)
if(LILY_METAL)
  list(FILTER metal_device_sources EXCLUDE REGEX "/absent\\.cpp$")
  enable_language(OBJCXX)
  file(GLOB metal_objcxx_sources CONFIGURE_DEPENDS ${metal_device_dir}/metal/*.mm)
  list(APPEND metal_objcxx_sources ${metal_device_dir}/metal.mm)
  set_source_files_properties(${metal_objcxx_sources} PROPERTIES COMPILE_OPTIONS
                              "-fobjc-arc;-Werror=unguarded-availability;-Werror=unguarded-availability-new")
  target_sources(lily_engine PRIVATE ${metal_objcxx_sources})
  set_target_properties(lily_engine PROPERTIES OBJCXX_STANDARD 20 OBJCXX_STANDARD_REQUIRED ON OBJCXX_EXTENSIONS OFF
                        OBJCXX_VISIBILITY_PRESET hidden)
  target_compile_definitions(lily_engine PUBLIC LILY_HAS_METAL)
  target_link_libraries(lily_engine PUBLIC "-framework Foundation" "-framework Metal")
endif()
target_sources(lily_engine PRIVATE ${metal_device_sources})
target_link_libraries(lily_engine PUBLIC ${CMAKE_DL_LIBS})

file(GLOB metal_kernel_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/metal/*.metal ${PROJECT_SOURCE_DIR}/metal/*.h)
install(FILES ${metal_kernel_files} DESTINATION lily/metal)
