# What is installed, and the Debian package of it.
include(GNUInstallDirs)
install(TARGETS gradtapd gradtap RUNTIME DESTINATION bin)
install(TARGETS gradtap_digest LIBRARY DESTINATION lib/gradtap)
install(FILES ${PROJECT_SOURCE_DIR}/cluster-config/gradtapd.service DESTINATION lib/systemd/system)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/cluster-config/ DESTINATION share/doc/gradtap/cluster-config
        PATTERN "gradtapd.service" EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION share/doc/gradtap/docs)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION share/doc/gradtap)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/gradtap RENAME copyright)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/trainer/gradtap DESTINATION lib/python3/dist-packages
        PATTERN "__pycache__" EXCLUDE)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gradtap)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "gradtap developers <gradtap@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "replica of a training job's state from mirrored gradient traffic")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Checkpoint nodes tap the gradient stream of a data-parallel training job at a
switch's mirror port, advance a bit-exact replica of model and optimizer state
off the training path, and hand a restarted job the exact state of a recent
step. Holds the node (gradtapd), the command line (gradtap), and the trainer's
Python package.")
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# The node loads these at run time, so no library dependency names them.
set(CPACK_DEBIAN_PACKAGE_DEPENDS
    "librte-bus-vdev23, librte-mempool-ring23, librte-net-af-packet23, librte-net-pcap23, librte-net-ring23")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-torch, python3-numpy")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/packaging/postinst;${PROJECT_SOURCE_DIR}/packaging/prerm;${PROJECT_SOURCE_DIR}/packaging/postrm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
include(CPack)
